# frozen_string_literal: true

# Loads the locks: the real gem's with REDIS_OBJECTS_LIB=/path/to/its/lib, otherwise the port in this folder.

$LOAD_PATH.unshift(ENV.fetch('REDIS_OBJECTS_LIB', File.join(__dir__, 'port')))

begin
  require 'redis'
rescue LoadError
  abort 'the Ruby client for Redis is missing; `make setup` installs it, or install ruby-redis (Debian) or the gem redis'
end
begin
  require 'redis/objects'
  require 'redis/lock' # up to 0.6.1 the gem does not load it by itself
rescue LoadError
  abort "REDIS_OBJECTS_LIB is not the lib folder of redis-objects: #{ENV.fetch('REDIS_OBJECTS_LIB')}"
end
begin
  require 'redis/objects/version'
rescue LoadError
  # Early gems do not contain their version, nor does the port.
end

if defined?(Redis::Objects::VERSION) && ENV.fetch('REDIS_OBJECTS_VERSION', Redis::Objects::VERSION) != Redis::Objects::VERSION
  abort "REDIS_OBJECTS_LIB has redis-objects #{Redis::Objects::VERSION}: set REDIS_OBJECTS_VERSION to that, " \
        "not to #{ENV.fetch('REDIS_OBJECTS_VERSION')}"
end

# From 2.0 on locks are declared by `redis_lock`. Here `lock` declares them in every version.
if defined?(Redis::Objects::Locks)
  Redis::Objects::Locks::ClassMethods.module_eval do
    alias_method :lock, :redis_lock if method_defined?(:redis_lock) && !method_defined?(:lock)
  end
end

# The gem that is loaded, in words.
def gem_in_use
  version = ENV.fetch('REDIS_OBJECTS_VERSION', '1.4.1')
  ENV.key?('REDIS_OBJECTS_LIB') ? "redis-objects from #{ENV['REDIS_OBJECTS_LIB']}" : "port of redis-objects #{version}"
end

# Connects to the server that REDIS_URL names. By default the client waits 5 s for a reply, which may be too short on a busy machine, and
# then sends the command again: it would find the lock held by itself.
def connection
  Redis.new(url: ENV.fetch('REDIS_URL', 'redis://127.0.0.1:6379/'), timeout: 60)
end
