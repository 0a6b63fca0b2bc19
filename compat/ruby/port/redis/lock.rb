# frozen_string_literal: true

# The lock of the gem redis-objects as each of its versions behaves, written for this project from the description in
# compat/README.md; no line of it is the gem's. The real gem takes its place with REDIS_OBJECTS_LIB.

require 'redis'

class Redis
  # A lock on one key. REDIS_OBJECTS_VERSION, any version of the gem, chooses the family.
  class Lock
    # Another holder had the lock until the timeout.
    class LockTimeout < StandardError; end

    POLL_INTERVAL = 0.1

    # Up to 0.2.2: the value 1, no takeover, always a DEL.
    module Plain
      module_function

      def take(redis, key, _expiration)
        :held if redis.setnx(key, '1')
      end

      def give(redis, key, _expiration, _held)
        redis.del(key)
      end
    end

    # 0.2.3 to 1.4.1: the expiry time is the value, and an expired one is taken over by GETSET.
    module Classic
      module_function

      def take(redis, key, expiration)
        value = value_for(expiration)
        return value if redis.setnx(key, value.to_s)
        return if expiration.nil? || !past?(redis.get(key))

        value = value_for(expiration)
        value if past?(redis.getset(key, value.to_s))
      end

      def give(redis, key, expiration, value)
        redis.del(key) if expiration.nil? || value > Time.now.to_f
      end

      def value_for(expiration)
        expiration.nil? ? 1 : Time.now.to_f + expiration.to_f + 1
      end

      # Text that is no number is 0, and so is a missing key: both are in the past.
      def past?(text)
        text.to_f < Time.now.to_f
      end
    end

    # From 1.4.2 on: an empty value with a time to live. The expired value of a classic holder is overwritten by a SET that does
    # not check for another contender.
    class TimeToLive
      # 1.4.2 reads its own milliseconds as seconds, and so deletes long after its lease has expired.
      def initialize(factor)
        @factor = factor
      end

      def take(redis, key, expiration)
        millis = ((expiration || 1).to_f * 1000).to_i
        ends = -> { Time.now.to_i + millis * @factor }
        mine = ends.call
        return mine if redis.set(key, '', px: millis, nx: true)
        return if expiration.nil?

        found = redis.get(key).to_f
        return if found.zero? || found >= Time.now.to_f

        mine = ends.call
        redis.set(key, '', px: millis)
        mine
      end

      def give(redis, key, expiration, ends)
        redis.del(key) if expiration.nil? || ends > Time.now.to_f
      end
    end

    # The family that a version of the gem belongs to.
    def self.family(version)
      # Compared as numbers: the tests start Ruby without RubyGems, which has a class for versions.
      numbers = version.split('.').map(&:to_i)
      before = ->(*other) { (numbers <=> other).negative? }
      return Plain if before[0, 2, 3]
      return Classic if before[1, 4, 2]

      TimeToLive.new(before[1, 4, 3] ? 1 : 0.001)
    end

    attr_reader :key, :options, :redis

    def initialize(key, *arguments)
      @options = arguments.last.is_a?(Hash) ? arguments.pop : {}
      @redis = arguments.first || Redis::Objects.redis
      @key = key.is_a?(Array) ? key.flatten.join(':') : key
      @family = Lock.family(Redis::Objects.version)
    end

    def lock
      raise ArgumentError, 'Block not given' unless block_given?

      expiration = options[:expiration]
      held = wait { @family.take(redis, key, expiration) }
      begin
        yield
      ensure
        @family.give(redis, key, expiration, held)
      end
    end

    def clear
      redis.del(key)
    end
    alias delete clear

    def value
      nil
    end

    private

    # A timeout of 0 is one try. Otherwise there is a full sleep after each failure, and no last try at the end.
    def wait
      timeout = options[:timeout] || 5
      start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      loop do
        held = yield
        return held if held

        sleep POLL_INTERVAL unless timeout.zero?
        break if timeout.zero? || Process.clock_gettime(Process::CLOCK_MONOTONIC) - start >= timeout
      end
      raise LockTimeout, "Timeout on lock #{key} exceeded #{timeout} sec"
    end
  end
end
