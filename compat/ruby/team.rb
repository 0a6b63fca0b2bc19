#!/usr/bin/env ruby
# frozen_string_literal: true

# A class with three locks, as a Ruby service has it; tools/ruby has the same in Rust. REDIS_URL names the server; see
# loading.rb for which gem it locks with.
#
#   team.rb keys ID          prints which gem it locks with, and the keys of its locks
#   team.rb trade ID FILE    prints ready, waits for a line, and trades until its input ends: counts in the file under the
#                            lock, and prints when it asked for the lock, acquired it, and is about to release it; after
#                            a timeout only when it asked

require_relative 'loading'

# The class of the README.
class Team
  include Redis::Objects

  lock :trade_players, expiration: 15, timeout: 10
  lock :reorder, global: true, expiration: 60
  lock :draft, key: 'season:2026:draft:#{id}', expiration: 15

  attr_reader :id

  def initialize(id)
    @id = id
  end
end

def keys(team)
  puts gem_in_use
  [team.trade_players_lock, Team.reorder_lock, team.draft_lock].each { |lock| puts lock.key }
end

# Microseconds since 1970, which Rust reads without loss.
def moment
  Process.clock_gettime(Process::CLOCK_REALTIME, :microsecond)
end

# Reads the number, takes some time, and writes it back: without the lock, updates would get lost.
def trade(team, file)
  asked = moment
  team.trade_players_lock.lock do
    acquired = moment
    number = File.read(file).to_i
    sleep rand(0.02..0.06)
    File.write(file, (number + 1).to_s)
    puts "#{asked} #{acquired} #{moment}"
  end
rescue Redis::Lock::LockTimeout
  puts asked
end

Redis::Objects.redis = connection
$stdout.sync = true

case ARGV
in ['keys', id]
  keys(Team.new(id))
in ['trade', id, file]
  puts 'ready'
  $stdin.gets
  input = Thread.new { $stdin.read }
  while input.alive?
    trade(Team.new(id), file)
    sleep rand(0.0..0.05)
  end
else
  abort 'usage: team.rb keys ID | trade ID FILE'
end
