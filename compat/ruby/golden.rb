#!/usr/bin/env ruby
# frozen_string_literal: true

# Writes how Ruby prints numbers, and how the gem builds keys, into files that the Rust tests read: golden.rb FOLDER.
# Every run writes the same. A real gem writes the keys of its own version only, and what it cannot declare is left out.

require_relative 'loading'

# The bits of a float, which lose nothing.
def bits(float)
  [float].pack('G').unpack1('H*')
end

# Text on one line, with every unusual byte escaped.
def plain(text)
  text.b.gsub(/[^!-\[\]-~]/n) { |byte| format('\\x%02x', byte.ord) }
end

def write(name, heading, rows)
  lines = ["# #{heading}", *rows.map { |row| row.join("\t") }]
  File.write(File.join(ARGV.fetch(0), name), "#{lines.join("\n")}\n")
end

# Points in time as a lock writes them, from no decimals to as many as there are.
def moments
  random = Random.new(20_261_120)
  whole = [1_000_000_000, 1_234_567_890, 1_532_000_016, 1_795_153_464, 2_147_483_648, 4_102_444_800]
  parts = [0.0, 0.5, 0.25, 0.1, 0.2949657, 0.000001, 0.999999, 0.9999999, 1.0 / 3]
  fixed = whole.product(parts).map { |second, part| second + part }
  fixed + Array.new(200) { random.rand(1_000_000_000.0..4_102_444_800.0) } + [1e15, 123_456_789_012_345.67]
end

write('floats.tsv', 'how Float#to_s writes points in time: bits of the float, text', moments.map { |f| [bits(f), f.to_s] })

CLASSES = %w[
  Team Nested::HTTPServerV2 HTTP A AB ABc ABC1 aB A1B2 Team2 V2Team OAuth2Token Some_Class UPPER_Case X::Y::ZebraCrossing
  HTTPServer::API Player3D IOStream Foo::BarBaz::QUX
].freeze
NAMES = %w[trade_players x reorder_lock].freeze
IDS = [7, '7', 'a:b', 'Ünï', 'with space', 0].freeze
# As they are written here; Ruby prints some of them in another way.
FLOAT_IDS = %w[7.0 0.1 0.0001 1e-05 1e16 -2.5 -0.0 123.456 9999999999999998.0 1e15 1278069994411036.5 1.5e300 2.5e-10].freeze
TEMPLATES = ['draft:#{id}', '#{id}', 'fixed', 'a:#{id}:b:#{id}', '(#{id})', 'draft(#{id})', 'a(b(#{id})c)()'].freeze
GLOBAL_TEMPLATES = ['gtpl:#{id}', 'a:#{id}:b', 'fixed', '(#{id})'].freeze

# A class of that name, with modules around it where it needs them. Early gems look it up by its name.
def class_named(name)
  *modules, last = name.split('::')
  home = modules.inject(Object) do |outer, part|
    outer.const_defined?(part, false) ? outer.const_get(part) : outer.const_set(part, Module.new)
  end
  home.send(:remove_const, last) if last.match?(/\A[A-Z]/) && home.const_defined?(last, false)
  Class.new do
    include Redis::Objects
    attr_reader :id

    define_singleton_method(:name) { name }
    define_method(:initialize) { |id| @id = id }
  end.tap { |klass| home.const_set(last, klass) if last.match?(/\A[A-Z]/) }
end

REAL = ENV.key?('REDIS_OBJECTS_LIB')

# Nothing if a real gem cannot declare this lock.
def key(klass, id, name, **options)
  klass.lock(name.to_sym, options)
  klass.new(id).public_send("#{name}_lock").key
rescue NameError, ArgumentError
  raise unless REAL
end

# The rules of class names, each with a version that has it: of a real gem its own.
def rules
  return [%w[1.4.1 legacy], %w[2.0.0 modern]] unless REAL

  modern = key(class_named('Nested::Thing'), 7, 'x').start_with?('nested__thing')
  [[ENV.fetch('REDIS_OBJECTS_VERSION'), modern ? 'modern' : 'legacy']]
end

Redis::Objects.redis = :none # nothing is sent

rows = rules.flat_map do |version, rule|
  ENV['REDIS_OBJECTS_VERSION'] = version
  CLASSES.flat_map do |name|
    NAMES.map { |lock| [rule, name, '-', lock, '7', '-', key(class_named(name), 7, lock)] } +
      [[rule, name, '-', 'reorder', '-', '-', key(class_named(name), 7, 'reorder', global: true)]]
  end
end
rows += IDS.map { |id| ['legacy', 'Team', '-', 'x', id, '-', key(class_named('Team'), id, 'x')] }
rows += FLOAT_IDS.map { |id| ['legacy', 'Team', '-', 'x', id, '-', key(class_named('Team'), Float(id), 'x')] }

# Templates, prefixes by hand and arrays came later than locks.
if !REAL || Gem::Version.new(ENV.fetch('REDIS_OBJECTS_VERSION')) >= Gem::Version.new('0.8')
  rows += TEMPLATES.map { |key| ['legacy', 'Team', '-', 'x', '7', key, key(class_named('Team'), 7, 'x', key: key)] }
  rows += FLOAT_IDS.first(3).map { |id| ['legacy', 'Team', '-', 'x', id, 't:#{id}', key(class_named('Team'), Float(id), 'x', key: 't:#{id}')] }
  rows += GLOBAL_TEMPLATES.map do |key|
    ['legacy', 'Team', '-', 'x', '-', key, key(class_named('Team'), 7, 'x', key: key, global: true)]
  end
  rows += ['club', 'Club:First', ''].map do |prefix|
    klass = class_named('Team')
    klass.redis_prefix = prefix
    ['legacy', 'Team', plain(prefix).then { |text| text.empty? ? 'EMPTY' : text }, 'x', '7', '-', key(klass, 7, 'x')]
  end
  parts = [[:a, [1, nil, :b]], %w[team 7 trade_players_lock], ['alone'], ['', '']]
  joined = parts.map { |array| [array.flatten.map { |part| plain(part.to_s) }.join(' '), Redis::Lock.new(array, :none, {}).key] }
end

rows.reject! { |row| row.last.nil? }

write('keys.tsv', 'rule, class, prefix by hand, lock, id (- is global; with a point or an exponent a float), template, key', rows)
write('joined.tsv', 'parts of an array, flattened, with a space between them; key', joined || [])
