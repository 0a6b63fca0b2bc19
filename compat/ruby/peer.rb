#!/usr/bin/env ruby
# frozen_string_literal: true

# A contender in Ruby for the tests and the benches. REDIS_URL names the server; see loading.rb for which gem it locks with.
#
#   peer.rb serve                               executes the commands on its input, line by line:
#       take NAME KEY EXPIRATION TIMEOUT        -> held NAME, or after the timeout: timeout NAME TEXT
#       give NAME                               -> given NAME, once the lock has been released
#   NAME is any word, so that one process can hold and contend.
#   peer.rb churn PROCESSES KEY FILE ROUNDS EXPIRATION
#                                               prints ready, waits for a line, and increments the number in a file under the
#                                               lock, ROUNDS times in each of PROCESSES processes
#   peer.rb crowd PROCESSES KEY EXPIRATION AHEAD
#                                               prints ready; for each line with a time, PROCESSES processes begin at that time to
#                                               wait for the lock, all at once, and each holds it for a moment. Prints
#                                               MOST CONTENDED: how many held it at once, and how many asked for it within 10 ms of
#                                               the first that got it. Their clocks are AHEAD seconds ahead
#
# An expiration of - is none. Killed while it holds, it is a crashed holder.

require_relative 'loading'

$stdout.sync = true

def lock(key, expiration, timeout)
  # Without `init: false` the first gems write the key when they make the lock.
  options = { timeout: timeout, init: false }
  options[:expiration] = Float(expiration) unless expiration == '-'
  Redis::Lock.new(key, connection, options)
end

# Each lock is held by a thread with a connection of its own, until the command to release it.
def take(name, key, expiration, timeout)
  commands = Queue.new
  Thread.new do
    lock(key, expiration, Float(timeout)).lock do
      puts "held #{name}"
      commands.pop
    end
    puts "given #{name}"
  rescue Redis::Lock::LockTimeout => e
    puts "timeout #{name} #{e.message}"
  rescue StandardError => e
    puts "failed #{name} #{e.class}: #{e.message}"
  end
  commands
end

def serve
  holders = {}
  puts 'ready'
  while (line = $stdin.gets)
    verb, name, *rest = line.split
    case verb
    when 'take' then holders[name] = take(name, *rest)
    when 'give' then holders.delete(name).push(:give)
    else abort "no such command: #{line}"
    end
  end
end

# Reads the number, waits a moment, and writes it back: without a lock that excludes, updates are lost.
def churn(key, file, rounds, expiration)
  shared = lock(key, expiration, 180)
  rounds.times do
    shared.lock do
      number = File.read(file).to_i
      sleep 0.002
      File.write(file, (number + 1).to_s)
    end
    sleep rand * 0.008
  end
end

# Sets the clock that the gem reads.
module Ahead
  def self.by(seconds)
    Time.singleton_class.prepend(Module.new { define_method(:now) { super() + seconds } })
  end
end

# Notes when the lock is asked for.
module Asked
  def self.times
    @times ||= []
  end

  def setnx(...)
    Asked.times << Time.now.to_f
    super
  end

  def set(...)
    Asked.times << Time.now.to_f
    super
  end
end

# Waits for the lock from a time on. Returns how many held it, this process included, when it got it, and when it asked for it.
def join_crowd(key, expiration, time, counter)
  sleep [time - Time.now.to_f, 0].max
  inside, got = nil
  Asked.times.clear
  lock(key, expiration, 60).lock do
    got = Asked.times.last
    inside = counter.incr("#{key}:inside")
    sleep 0.02
    counter.decr("#{key}:inside")
  end
  [inside, got, *Asked.times]
end

def crowd(processes, key, expiration, ahead)
  Ahead.by(ahead) if ahead.positive?
  Redis.prepend(Asked)
  children = Array.new(processes) do
    input, times = IO.pipe
    results, output = IO.pipe
    fork do
      times.close
      counter = connection
      counter.ping
      while (line = input.gets)
        output.puts join_crowd(key, expiration, Float(line) + ahead, counter).join(' ')
      end
    end
    output.close
    [times, results]
  end
  puts 'ready'
  while (time = $stdin.gets)
    children.each { |times, _| times.puts(time) }
    numbers = children.map { |_, results| results.gets.split.map(&:to_f) }
    first = numbers.map { |_, got| got }.min
    contended = numbers.count { |_, _, *asked| asked.any? { |at| (at - first).abs < 0.01 } }
    puts "#{numbers.map(&:first).max.to_i} #{contended}"
  end
end

# Forks, since loading Ruby takes longer than counting.
def churn_in(processes, *arguments)
  start, started = IO.pipe
  children = Array.new(processes) do
    fork do
      started.close
      start.read
      churn(*arguments)
    end
  end
  puts 'ready'
  $stdin.gets
  started.close
  exit(children.all? { |child| Process.wait2(child).last.success? })
end

case ARGV
in ['serve'] then serve
in ['churn', processes, key, file, rounds, expiration]
  churn_in(Integer(processes), key, file, Integer(rounds), expiration)
in ['crowd', processes, key, expiration, ahead]
  crowd(Integer(processes), key, expiration, Float(ahead))
else abort 'usage: peer.rb serve | churn PROCESSES KEY FILE ROUNDS EXPIRATION | crowd PROCESSES KEY EXPIRATION AHEAD'
end
