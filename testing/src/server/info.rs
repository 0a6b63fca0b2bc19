//! INFO as each version writes it.
//!
//! The fields of the old versions are read in the sources of 1.3.6 and 2.1 (for 1.2, less what came with 2.0), of the
//! time between 2.2 and 2.4, and of 2.6, and in what a 2.4.16 printed. Of a current version those are here that tell
//! something about this server, or that clients ask for.

use super::Server;
use super::version::ServerVersion;

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
     master_host master_port master_link_status master_last_io_seconds_ago master_sync_in_progress db*",
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

const V7: &[Section] = &[
    (
        "Server",
        "redis_version valkey_version redis_git_sha1 redis_git_dirty redis_mode os arch_bits multiplexing_api process_id run_id tcp_port \
         server_time_usec uptime_in_seconds uptime_in_days hz lru_clock",
    ),
    ("Clients", "connected_clients maxclients blocked_clients"),
    (
        "Memory",
        "used_memory used_memory_human used_memory_rss used_memory_peak used_memory_lua maxmemory maxmemory_policy \
         mem_fragmentation_ratio mem_not_counted_for_evict mem_allocator",
    ),
    (
        "Persistence",
        "loading async_loading rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_save_time rdb_last_bgsave_status aof_enabled \
         aof_rewrite_in_progress",
    ),
    (
        "Stats",
        "total_connections_received total_commands_processed rejected_connections expired_keys evicted_keys keyspace_hits \
         keyspace_misses pubsub_channels pubsub_patterns",
    ),
    (
        "Replication",
        "role master_host master_port master_link_status master_last_io_seconds_ago master_sync_in_progress slave_priority \
         slave_read_only connected_slaves master_failover_state master_replid master_repl_offset",
    ),
    ("CPU", "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children"),
    ("Modules", ""),
    ("Errorstats", ""),
    ("Cluster", "cluster_enabled"),
    ("Keyspace", "db*"),
];

/// Fields whose values do not depend on anything.
#[rustfmt::skip]
const FIXED: &[(&str, &str)] = &[
    ("redis_git_sha1", "00000000"), ("redis_git_dirty", "0"), ("os", "Linux"), ("arch_bits", "64"),
    ("multiplexing_api", "epoll"), ("gcc_version", "4.4.5"), ("lru_clock", "0"), ("hz", "10"),
    ("used_cpu_sys", "0.00"), ("used_cpu_user", "0.00"), ("used_cpu_sys_children", "0.00"), ("used_cpu_user_children", "0.00"),
    ("used_cpu_sys_childrens", "0.00"), ("used_cpu_user_childrens", "0.00"),
    ("client_longest_output_list", "0"), ("client_biggest_input_buf", "0"),
    ("used_memory_lua", "31744"), ("mem_fragmentation_ratio", "1.00"), ("mem_allocator", "libc"), ("mem_not_counted_for_evict", "0"),
    ("use_tcmalloc", "0"), ("async_loading", "0"),
    ("changes_since_last_save", "0"), ("rdb_changes_since_last_save", "0"), ("bgsave_in_progress", "0"), ("rdb_bgsave_in_progress", "0"),
    ("rdb_last_bgsave_status", "ok"), ("rdb_last_bgsave_time_sec", "-1"), ("rdb_current_bgsave_time_sec", "-1"),
    ("bgrewriteaof_in_progress", "0"), ("aof_rewrite_in_progress", "0"), ("aof_rewrite_scheduled", "0"),
    ("aof_last_rewrite_time_sec", "-1"), ("aof_current_rewrite_time_sec", "-1"), ("aof_last_bgrewrite_status", "ok"),
    ("instantaneous_ops_per_sec", "0"), ("rejected_connections", "0"), ("expired_keys", "0"), ("evicted_keys", "0"),
    ("keyspace_hits", "0"), ("keyspace_misses", "0"), ("latest_fork_usec", "0"),
    ("hash_max_zipmap_entries", "512"), ("hash_max_zipmap_value", "64"), ("vm_enabled", "0"),
    ("slave_priority", "100"), ("master_failover_state", "no-failover"),
    ("master_replid", "0000000000000000000000000000000000000000"), ("master_repl_offset", "0"),
];

impl Server {
    /// The text of INFO with these sections, or with all that it has by default. Before 2.6 there are no sections.
    pub(super) fn info(&self, version: ServerVersion, sections: &[String]) -> String {
        let all = match self.version {
            // What looks at a server of another version sees that version.
            ServerVersion::V1_2 => V1_2,
            ServerVersion::V2_0 => V2_0,
            ServerVersion::V2_2 => V2_2,
            ServerVersion::V2_4 => V2_4,
            ServerVersion::V2_6 => V2_6,
            _ => V7,
        };
        let all = if version == self.version { all } else { V7 };
        let is_asked = |heading: &str| {
            let names = |section: &String| {
                ["default", "all", "everything"].contains(&section.as_str())
                    || heading.eq_ignore_ascii_case(section)
            };
            sections.is_empty() || sections.iter().any(names)
        };
        let part = |(heading, fields): &Section| {
            let heading = if heading.is_empty() { String::new() } else { format!("# {heading}\r\n") };
            heading + &fields.split_whitespace().map(|field| self.line(field)).collect::<String>()
        };
        all.iter().filter(|(heading, _)| is_asked(heading)).map(part).collect::<Vec<_>>().join("\r\n")
    }

    /// The line of a field, or one for each database; empty for a field that does not apply.
    fn line(&self, field: &str) -> String {
        if field == "db*" {
            let full = self.databases.iter().enumerate().filter(|(_, database)| database.len() > 0);
            let ends = if self.version >= ServerVersion::V7 { ",avg_ttl=0" } else { "" };
            let line = |(n, database): (usize, &super::Database)| {
                format!("db{n}:keys={},expires={}{ends}\r\n", database.len(), database.expiring())
            };
            return full.map(line).collect();
        }
        let fixed = || FIXED.iter().find(|(name, _)| *name == field).map(|(_, value)| (*value).to_owned());
        self.value(field).or_else(fixed).map(|value| format!("{field}:{value}\r\n")).unwrap_or_default()
    }

    fn value(&self, field: &str) -> Option<String> {
        let uptime = self.now.saturating_sub(self.started).as_secs();
        let master = self.settings.master.as_ref();
        let listening = |patterns: bool| -> usize {
            self.clients
                .values()
                .map(|client| if patterns { client.patterns.len() } else { client.channels.len() })
                .sum()
        };
        Some(match field {
            "redis_version" => self.version.number().to_owned(),
            "valkey_version" if self.version == ServerVersion::Valkey9 => "9.0.0".to_owned(),
            "process_id" => self.settings.process.to_string(),
            "tcp_port" => self.settings.port.to_string(),
            "run_id" => format!("{:040x}", u128::from(self.run) << 64 | self.started.as_nanos()),
            "server_time_usec" => self.now.as_micros().to_string(),
            "uptime_in_seconds" => uptime.to_string(),
            "uptime_in_days" => (uptime / 86400).to_string(),
            "connected_clients" => self.ordinary_clients().count().to_string(),
            "maxclients" => self.settings.number("maxclients").to_string(),
            "blocked_clients" => self.waiting.len().to_string(),
            "used_memory" | "used_memory_rss" | "used_memory_peak" => self.memory_in_use().to_string(),
            "used_memory_human" | "used_memory_peak_human" => format!("{}K", self.memory_in_use() >> 10),
            "maxmemory" => self.settings.memory_limit().to_string(),
            "maxmemory_policy" => self.settings.text("maxmemory-policy").to_owned(),
            "aof_enabled" => u8::from(self.settings.text("appendonly") == "yes").to_string(),
            "last_save_time" | "rdb_last_save_time" => self.started.as_secs().to_string(),
            "total_connections_received" => self.connected.to_string(),
            "total_commands_processed" => self.executed.to_string(),
            "pubsub_channels" => listening(false).to_string(),
            "pubsub_patterns" => listening(true).to_string(),
            "loading" => {
                let is_loading =
                    self.settings.refuses.as_ref().is_some_and(|text| text.starts_with("LOADING"));
                u8::from(is_loading).to_string()
            }
            "redis_mode" => match (&self.settings.sentinel, &self.settings.cluster) {
                (Some(_), _) => "sentinel".to_owned(),
                (_, Some(_)) => "cluster".to_owned(),
                _ => "standalone".to_owned(),
            },
            "cluster_enabled" => u8::from(self.settings.cluster.is_some()).to_string(),
            "role" => if master.is_some() { "slave" } else { "master" }.to_owned(),
            "connected_slaves" => "0".to_owned(),
            "master_host" => master?.0.clone(),
            "master_port" => master?.1.to_string(),
            "master_link_status" => master.map(|_| "down".to_owned())?,
            "master_last_io_seconds_ago" => master.map(|_| "-1".to_owned())?,
            "master_sync_in_progress" => master.map(|_| "0".to_owned())?,
            "slave_read_only" => master.map(|_| u8::from(self.settings.is_read_only()).to_string())?,
            _ => return None,
        })
    }
}
