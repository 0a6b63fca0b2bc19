//! INFO as each version wrote it, with the real server's values.
//!
//! The fields are read in the sources of 1.3.6 and 2.1 (for 1.2, less what came with 2.0), of the time between 2.2 and 2.4, and
//! of 2.6, and in what a 2.4.16 printed.

use super::resp::{bulk, text};
use super::versions::Emulated;

/// A heading and its fields. A star stands for a number.
type Section = (&'static str, &'static str);

const V1_2: &[Section] = &[(
    "",
    "redis_version arch_bits multiplexing_api uptime_in_seconds uptime_in_days connected_clients connected_slaves \
     used_memory changes_since_last_save bgsave_in_progress last_save_time bgrewriteaof_in_progress \
     total_connections_received total_commands_processed role \
     master_host master_port master_link_status master_last_io_seconds_ago db*",
)];

const V2_0: &[Section] = &[(
    "",
    "redis_version redis_git_sha1 redis_git_dirty arch_bits multiplexing_api process_id uptime_in_seconds \
     uptime_in_days connected_clients connected_slaves blocked_clients used_memory used_memory_human \
     changes_since_last_save bgsave_in_progress last_save_time bgrewriteaof_in_progress total_connections_received \
     total_commands_processed expired_keys hash_max_zipmap_entries hash_max_zipmap_value pubsub_channels \
     pubsub_patterns vm_enabled role \
     master_host master_port master_link_status master_last_io_seconds_ago db*",
)];

const V2_2: &[Section] = &[(
    "",
    "redis_version redis_git_sha1 redis_git_dirty arch_bits multiplexing_api process_id uptime_in_seconds \
     uptime_in_days lru_clock used_cpu_sys used_cpu_user used_cpu_sys_childrens used_cpu_user_childrens \
     connected_clients connected_slaves client_longest_output_list client_biggest_input_buf blocked_clients \
     used_memory used_memory_human used_memory_rss mem_fragmentation_ratio use_tcmalloc loading aof_enabled \
     changes_since_last_save bgsave_in_progress last_save_time bgrewriteaof_in_progress total_connections_received \
     total_commands_processed expired_keys evicted_keys keyspace_hits keyspace_misses hash_max_zipmap_entries \
     hash_max_zipmap_value pubsub_channels pubsub_patterns vm_enabled role \
     master_host master_port master_link_status master_last_io_seconds_ago master_sync_in_progress db*",
)];

const V2_4: &[Section] = &[(
    "",
    "redis_version redis_git_sha1 redis_git_dirty arch_bits multiplexing_api gcc_version process_id \
     uptime_in_seconds uptime_in_days lru_clock used_cpu_sys used_cpu_user used_cpu_sys_children \
     used_cpu_user_children connected_clients connected_slaves client_longest_output_list client_biggest_input_buf \
     blocked_clients used_memory used_memory_human used_memory_rss used_memory_peak used_memory_peak_human \
     mem_fragmentation_ratio mem_allocator loading aof_enabled changes_since_last_save bgsave_in_progress \
     last_save_time bgrewriteaof_in_progress total_connections_received total_commands_processed expired_keys \
     evicted_keys keyspace_hits keyspace_misses pubsub_channels pubsub_patterns latest_fork_usec vm_enabled role \
     master_host master_port master_link_status master_last_io_seconds_ago master_sync_in_progress slave* db*",
)];

const V2_6: &[Section] = &[
    (
        "Server",
        "redis_version redis_git_sha1 redis_git_dirty redis_mode os arch_bits multiplexing_api gcc_version \
         process_id run_id tcp_port uptime_in_seconds uptime_in_days lru_clock",
    ),
    ("Clients", "connected_clients client_longest_output_list client_biggest_input_buf blocked_clients"),
    (
        "Memory",
        "used_memory used_memory_human used_memory_rss used_memory_peak used_memory_peak_human used_memory_lua \
         mem_fragmentation_ratio mem_allocator",
    ),
    (
        "Persistence",
        "loading rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_save_time rdb_last_bgsave_status \
         rdb_last_bgsave_time_sec rdb_current_bgsave_time_sec aof_enabled aof_rewrite_in_progress \
         aof_rewrite_scheduled aof_last_rewrite_time_sec aof_current_rewrite_time_sec aof_last_bgrewrite_status",
    ),
    (
        "Stats",
        "total_connections_received total_commands_processed instantaneous_ops_per_sec rejected_connections \
         expired_keys evicted_keys keyspace_hits keyspace_misses pubsub_channels pubsub_patterns latest_fork_usec",
    ),
    (
        "Replication",
        "role master_host master_port master_link_status master_last_io_seconds_ago master_sync_in_progress \
         slave_priority slave_read_only connected_slaves slave*",
    ),
    ("CPU", "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children"),
    ("Keyspace", "db*"),
];

/// Old names of fields, and the current ones.
const RENAMED: &[(&str, &str)] = &[
    ("changes_since_last_save", "rdb_changes_since_last_save"),
    ("bgsave_in_progress", "rdb_bgsave_in_progress"),
    ("last_save_time", "rdb_last_save_time"),
    ("bgrewriteaof_in_progress", "aof_rewrite_in_progress"),
    ("used_cpu_sys_childrens", "used_cpu_sys_children"),
    ("used_cpu_user_childrens", "used_cpu_user_children"),
];

/// The fields that a current server no longer reports, with the values of an old one's default configuration.
const REMOVED: &[(&str, &str)] = &[
    ("client_longest_output_list", "0"),
    ("client_biggest_input_buf", "0"),
    ("use_tcmalloc", "0"),
    ("hash_max_zipmap_entries", "512"),
    ("hash_max_zipmap_value", "64"),
    ("vm_enabled", "0"),
];

/// The real server's fields.
#[derive(Debug)]
pub(super) struct Info(Vec<(String, String)>);

impl Info {
    /// Parses the reply to INFO; an error gives no fields.
    pub(super) fn parse(reply: &[u8]) -> Self {
        let lines = text(reply);
        let pairs = lines.lines().skip(1).filter_map(|line| line.split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the reply to INFO of that version. The section counts for versions that have sections.
    pub(super) fn written_by(&self, version: Emulated, section: &str) -> Vec<u8> {
        let sections = match version {
            Emulated::V1_2 => V1_2,
            Emulated::V2_0 => V2_0,
            Emulated::V2_2 => V2_2,
            Emulated::V2_4 => V2_4,
            Emulated::V2_6 => V2_6,
        };
        let every = ["", "default", "all"].contains(&section.to_lowercase().as_str());
        let mut parts = Vec::new();
        for (heading, fields) in sections {
            if !every && !heading.eq_ignore_ascii_case(section) {
                continue;
            }
            let heading = if heading.is_empty() { String::new() } else { format!("# {heading}\r\n") };
            let lines: String = fields.split_whitespace().map(|field| self.lines(version, field)).collect();
            parts.push(heading + &lines);
        }
        bulk(parts.join("\r\n").as_bytes())
    }

    /// The line of a field, or the lines of a numbered one; empty for a field that the real server does not report.
    fn lines(&self, version: Emulated, field: &str) -> String {
        if let Some(prefix) = field.strip_suffix('*') {
            let numbered = self.0.iter().filter_map(|(name, value)| {
                name.strip_prefix(prefix)?
                    .parse::<u32>()
                    .ok()
                    .map(|_| format!("{name}:{}\r\n", shorter(value)))
            });
            return numbered.collect();
        }
        let now = RENAMED.iter().find(|(old, _)| *old == field).map_or(field, |(_, now)| now);
        let removed = || REMOVED.iter().find(|(old, _)| *old == field).map(|(_, value)| *value);
        let value =
            if field == "redis_version" { Some(version.number()) } else { self.value(now).or_else(removed) };
        value.map(|value| format!("{field}:{value}\r\n")).unwrap_or_default()
    }
}

/// Databases had no `avg_ttl`, and a replica's line only had its address, port and state, without names.
fn shorter(value: &str) -> String {
    match value.strip_prefix("ip=") {
        Some(replica) => {
            let fields = replica.split(',').take(3);
            fields
                .map(|part| part.split_once('=').map_or(part, |(_, value)| value))
                .collect::<Vec<_>>()
                .join(",")
        }
        None => value.split(",avg_ttl").next().unwrap_or_default().to_owned(),
    }
}
