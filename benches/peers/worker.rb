#!/usr/bin/env ruby
# frozen_string_literal: true

# A worker process that locks as the gem does; src/worker.rs says what it is told and answers. REDIS_URL names the server; see
# compat/ruby/loading.rb for which gem it locks with.

begin
  require_relative '../../compat/ruby/loading'
rescue SystemExit => e
  puts "failed #{e.message}"
  exit 1
end

$stdout.sync = true

WARMING_PAIRS = 3
PATIENCE = 60
# The value in the key names a time one second after the lease.
GRACE = 1

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def sleep_until(moment)
  left = moment - now
  sleep left / 1e9 if left.positive?
end

# Sleeps through one half and spins through the other, so that no hold is longer for a sleep that overshoots.
def hold_for(nanos)
  finish = now + nanos
  sleep nanos / 2e9
  nil while now < finish
end

# What is on the server, with as many connections as threads want at once.
class Crew
  def initialize(threads, millis)
    @threads = Integer(threads)
    @expiration = Integer(millis) / 1000.0 - GRACE
    @idle = Queue.new
    warm
  end

  def warm
    all(@threads) do |n, redis|
      WARMING_PAIRS.times { lock("warm:#{Process.pid}:#{n}", redis).lock {} }
    end
    'warm'
  end

  def pairs(keys, millis)
    began = now
    finish = began + Integer(millis) * 1_000_000
    each = all(@threads) do |n, redis|
      own = lock("#{keys}:#{n}", redis)
      releases = []
      left = now
      while left < finish
        own.lock { left = now }
        releases << now - left
      end
      releases
    end
    time = now - began
    releases = each.flatten.sort
    "pairs #{releases.size} #{time} #{releases[releases.size * 99 / 100]}"
  end

  def once(key, hold, threads, start, step)
    turns(key, threads) do |n, own|
      sleep_until(Integer(start) + n * Integer(step))
      own.lock { stay(Integer(hold)) }
    end
  end

  def loop(key, hold, threads, start, millis)
    finish = Integer(start) + Integer(millis) * 1_000_000
    turns(key, threads) do |_, own|
      sleep_until(Integer(start))
      mine = []
      own.lock { mine.concat(stay(Integer(hold))) if now < finish } while now < finish
      mine
    end
  end

  def take(key, told)
    gave = nil
    with_connection do |redis|
      lock(key, redis).lock do
        puts "held #{key}"
        told.pop
        gave = now
      end
    end
    "gave #{key} #{gave}"
  end

  private

  def stay(hold)
    entered = now
    hold_for(hold * 1000)
    [entered, now]
  end

  def turns(key, threads)
    each = all(Integer(threads)) { |n, redis| yield n, lock(key, redis) }
    lines = each.each_with_index.flat_map do |moments, n|
      moments.each_slice(2).map { |entered, left| "turn #{n} #{entered} #{left}" }
    end
    [*lines, "done #{key}"].join("\n")
  end

  def lock(key, redis)
    Redis::Lock.new(key, redis, expiration: @expiration, timeout: PATIENCE)
  end

  # Has each of so many threads do the block, and returns what each came to.
  def all(count)
    Array.new(count) { |n| Thread.new { with_connection { |redis| yield n, redis } } }.map(&:value)
  end

  def with_connection
    redis = idle || connection
    yield redis
  ensure
    @idle << redis if redis
  end

  def idle
    @idle.pop(true)
  rescue ThreadError
    nil
  end
end

# Does a job on a thread of its own and says what came of it. The words are handed over: a moment later the line is another.
def job(*words)
  Thread.new do
    puts yield(*words)
  rescue StandardError => e
    puts "failed #{e.class}: #{e.message.tr("\n", ' ')}"
  end
end

Thread.report_on_exception = false
crew = nil
kept = {}
while (line = $stdin.gets)
  verb, *words = line.split
  case verb
  when 'open'
    job(*words) do |threads, millis|
      crew = Crew.new(threads, millis)
      "ready #{gem_in_use}, redis-rb #{Redis::VERSION}, Ruby #{RUBY_VERSION}"
    end
  when 'warm' then job { crew.warm }
  when 'pairs', 'once', 'loop' then job(verb, *words) { |what, *rest| crew.public_send(what, *rest) }
  when 'take' then job(words[0], kept[words[0]] = Queue.new) { |key, told| crew.take(key, told) }
  when 'give' then kept.delete(words[0]) << :give
  when 'cpu' then puts "cpu #{Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)}"
  else puts "failed no such command: #{verb}"
  end
end

# Whoever told it what to do is gone: no thread is waited for.
exit!
