#!/usr/bin/env ruby
# frozen_string_literal: true

# A worker process that locks as the gem does. src/worker.rs lists its instructions and answers; REDIS_URL names the server, and
# compat/ruby/loading.rb says which gem it locks with.

begin
  require_relative '../../compat/ruby/loading'
rescue SystemExit => e
  puts "failed #{e.message}"
  exit 1
end

$stdout.sync = true

WARMING_PAIRS = 3
TIMEOUT = 60
# The value in the key names a time one second after the lease.
GRACE = 1

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def sleep_until(moment)
  left = moment - now
  sleep left / 1e9 if left.positive?
end

# Sleeps through one half and spins through the other: a sleep that overshoots would make a hold longer.
def hold_for(nanos)
  finish = now + nanos
  sleep nanos / 2e9
  nil while now < finish
end

# The locks on the server, with as many connections as threads need at once.
class Worker
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
    acquisitions(key, threads) do |n, own|
      sleep_until(Integer(start) + n * Integer(step))
      own.lock { stay(Integer(hold)) }
    end
  end

  def loop(key, hold, threads, start, millis)
    finish = Integer(start) + Integer(millis) * 1_000_000
    acquisitions(key, threads) do |_, own|
      sleep_until(Integer(start))
      mine = []
      own.lock { mine.concat(stay(Integer(hold))) if now < finish } while now < finish
      mine
    end
  end

  def hold(key, release)
    left = nil
    with_connection do |redis|
      lock(key, redis).lock do
        puts "held #{key}"
        release.pop
        left = now
      end
    end
    "released #{key} #{left}"
  end

  private

  def stay(hold)
    entered = now
    hold_for(hold * 1000)
    [entered, now]
  end

  def acquisitions(key, threads)
    each = all(Integer(threads)) { |n, redis| yield n, lock(key, redis) }
    lines = each.each_with_index.flat_map do |moments, n|
      moments.each_slice(2).map { |entered, left| "acquisition #{n} #{entered} #{left}" }
    end
    [*lines, "done #{key}"].join("\n")
  end

  def lock(key, redis)
    Redis::Lock.new(key, redis, expiration: @expiration, timeout: TIMEOUT)
  end

  # Runs the block on so many threads at once, and returns each thread's result.
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

# Runs a job on a thread of its own, and answers with its outcome. The words are arguments: the main thread reads the next line
# meanwhile.
def job(*words)
  Thread.new do
    puts yield(*words)
  rescue StandardError => e
    puts "failed #{e.class}: #{e.message.tr("\n", ' ')}"
  end
end

Thread.report_on_exception = false
worker = nil
held = {}
while (line = $stdin.gets)
  verb, *words = line.split
  case verb
  when 'open'
    job(*words) do |threads, millis|
      worker = Worker.new(threads, millis)
      "ready #{gem_in_use}, redis-rb #{Redis::VERSION}, Ruby #{RUBY_VERSION}"
    end
  when 'warm' then job { worker.warm }
  when 'pairs', 'once', 'loop' then job(verb, *words) { |what, *rest| worker.public_send(what, *rest) }
  when 'acquire' then job(words[0], held[words[0]] = Queue.new) { |key, release| worker.hold(key, release) }
  when 'release' then held.delete(words[0]) << :release
  when 'cpu' then puts "cpu #{Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :nanosecond)}"
  else puts "failed no such instruction: #{verb}"
  end
end

# The conductor has closed the input: threads that still run are not waited for.
exit!
