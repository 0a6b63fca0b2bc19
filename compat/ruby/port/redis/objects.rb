# frozen_string_literal: true

# Locks declared in a class, as the gem redis-objects has them: names, keys, options and errors. Written for this project from
# the descriptions in compat/README.md and docs/from-ruby.md; no line of it is the gem's.

require 'redis'
require 'redis/lock'

class Redis
  # To be included in a class that declares locks.
  module Objects
    class UndefinedLock < StandardError; end
    class NilObjectId < StandardError; end

    class << self
      attr_writer :redis

      def redis
        @redis ||= Redis.new
      end

      # The version of the gem that is emulated.
      def version
        ENV.fetch('REDIS_OBJECTS_VERSION', '1.4.1')
      end

      def included(klass)
        klass.extend(ClassMethods)
      end
    end

    # What a class with locks can do.
    module ClassMethods
      attr_writer :redis_prefix

      def redis_prefix
        @redis_prefix ||= prefix_of_the_name
      end

      def lock(name, options = {})
        locks[name] = options
        define_method("#{name}_lock") { self.class.send(:declared, name, self) }
        define_singleton_method("#{name}_lock") { declared(name, nil) } if options[:global]
      end
      alias redis_lock lock

      def obtain_lock(name, id, &block)
        verify(name)
        raise ArgumentError, "Missing block to #{self.name}.obtain_lock" unless block

        lock_at(name, key_for(name, id)).lock(&block)
      end

      def clear_lock(name, id)
        verify(name)
        Redis::Objects.redis.del(key_for(name, id))
      end

      # The key of a declared lock for an object. A global lock is the class's, which has no id.
      def key_of(name, object)
        return key_for(name, nil) if locks.fetch(name)[:global]

        key_for(name, object.id, object)
      end

      private

      def locks
        @locks ||= {}
      end

      def verify(name)
        raise UndefinedLock, "Undefined lock :#{name} for class #{self.name}" unless locks.key?(name)
      end

      def declared(name, object)
        lock_at(name, key_of(name, object || self))
      end

      def lock_at(name, key)
        Redis::Lock.new(key, Redis::Objects.redis, locks[name])
      end

      # In a template, `id` is this method's argument, and nil fills in nothing. Other names are the context's.
      def key_for(name, id, context = self)
        return context.instance_eval("%(#{locks[name][:key]})", __FILE__, __LINE__) if locks[name][:key]

        raise NilObjectId, "lock :#{name} of #{self.name} has no id" if id.nil? && !locks[name][:global]

        "#{redis_prefix}:#{id}:#{name}_lock"
      end

      # Up to 1.x the last part of the class name, from 2.0 on all of it.
      def prefix_of_the_name
        legacy = Redis::Objects.version.to_i < 2
        whole = legacy ? name.split('::').last : name.gsub('::', '__')
        whole.gsub(/([A-Z]+)(?=[A-Z][a-z])/) { "#{$1}_" }.gsub(/([a-z\d])(?=[A-Z])/) { "#{$1}_" }.downcase
      end
    end
  end
end
