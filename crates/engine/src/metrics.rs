//! The metrics of a node, for Prometheus. Counters and histograms are updated where the work is done; gauges
//! are read off the engine when the page is asked for.

use super::status::Status;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use quoin_consensus::transport::Counters;
use quoin_store::StoreStats;
use std::sync::atomic::Ordering;

/// The metrics of one node. Names begin with `quoin_`; units are in the names.
pub struct Metrics {
    registry: Registry,
    /// Commands that were answered, by outcome: `applied`, `busy`, `no_leader`, `no_space`, `too_large`,
    /// `leader_changed`, `unknown`, `refused`, `stopped`.
    pub commands: IntCounterVec,
    /// The applied ones of [`Self::commands`], without the lookup by label: this is counted for every
    /// command.
    pub commands_applied: IntCounter,
    /// Commands that took their turn because they take long, see [`crate::Engine::propose_paced`].
    pub commands_paced: IntCounter,
    /// Reads that were served linearizably.
    pub reads_linearizable: IntCounter,
    /// Reads that were served from this replica's own state.
    pub reads_local: IntCounter,
    /// Reads that were not served.
    pub reads_refused: IntCounter,
    /// Seconds of one log write with its sync.
    pub log_write_seconds: Histogram,
    /// Records in one log write.
    pub log_write_records: Histogram,
    /// Seconds of applying one entry.
    pub apply_seconds: Histogram,
    /// Commands in one entry.
    pub batch_commands: Histogram,
    /// Seconds by which this machine's wall clock is ahead of the cluster's time.
    pub clock_ahead_seconds: Gauge,
    /// Bytes of files that were read again, to find damage.
    pub scrubbed_bytes: IntCounter,
    /// Files that were found to be damaged, at each pass.
    pub damage_found: IntCounter,
    /// When the last pass over all files ended, in seconds of the Unix epoch; 0: none yet.
    pub scrub_finished: Gauge,
    /// Whether a member has raised the alarm CORRUPT.
    pub corrupt: IntGauge,
    /// Leaders that this replica has come to know, one after the other.
    pub leader_changes: IntCounter,
    /// Connections on the client port closed for bytes that no client sends.
    pub client_garbage: IntCounter,
    /// Connections on the HTTP port closed for bytes that are no request.
    pub http_garbage: IntCounter,
    /// Connections whose TLS handshake failed, or that came without TLS to a port that has it.
    pub tls_failed: IntCounter,
    /// Certificates that were read anew, by outcome: `good`, or `bad`, and those from before still count.
    pub tls_reloads: IntCounterVec,
    /// When a certificate expires, in seconds of the Unix epoch, by `ports`: `clients` or `peers`.
    pub tls_expires: GaugeVec,
    /// Connections closed because they did not take what was said on the channels they listened to.
    pub subscribers_lost: IntCounter,
    /// Records of the audit trail that are on disk.
    pub audit_written: IntCounter,
    /// Records of the audit trail that were lost.
    pub audit_lost: IntCounter,
    /// Whether the audit trail cannot be written.
    pub audit_failing: IntGauge,
    gauges: Gauges,
}

struct Gauges {
    is_leader: IntGauge,
    has_leader: IntGauge,
    term: IntGauge,
    committed_index: IntGauge,
    applied_index: IntGauge,
    persisted_index: IntGauge,
    revision: IntGauge,
    compacted_revision: IntGauge,
    queued_commands: IntGauge,
    lag_seconds: Gauge,
    log_bytes: IntGauge,
    store_bytes: IntGauge,
    store_memtable_bytes: IntGauge,
    store_tables: IntGauge,
    store_waited_seconds: Gauge,
    no_space: IntGauge,
    peer_sent_bytes: IntGauge,
    peer_received_bytes: IntGauge,
    peer_dropped_messages: IntGauge,
    peer_garbage_connections: IntGauge,
}

/// From 10 microseconds to about 6 seconds, four buckets a decade.
fn seconds_buckets() -> Vec<f64> {
    (0..24).map(|step| 1e-5 * 10f64.powf(f64::from(step) / 4.0)).collect()
}

fn count_buckets() -> Vec<f64> {
    (0..14).map(|power| f64::from(1 << power)).collect()
}

/// Makes metrics and registers them. Their names are constants of this file, so registering cannot fail.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn register(&self, collector: impl prometheus::core::Collector + 'static) {
        self.0.register(Box::new(collector)).expect("each metric has a name of its own");
    }

    fn int_gauge(&self, name: &str, help: &str) -> IntGauge {
        let gauge = IntGauge::new(name, help).expect("a metric's name is well formed");
        self.register(gauge.clone());
        gauge
    }

    fn gauge(&self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::new(name, help).expect("a metric's name is well formed");
        self.register(gauge.clone());
        gauge
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        let counter = IntCounter::new(name, help).expect("a metric's name is well formed");
        self.register(counter.clone());
        counter
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> IntCounterVec {
        let counters =
            IntCounterVec::new(Opts::new(name, help), &[label]).expect("a metric's name is well formed");
        self.register(counters.clone());
        counters
    }

    fn gauges(&self, name: &str, help: &str, label: &str) -> GaugeVec {
        let gauges = GaugeVec::new(Opts::new(name, help), &[label]).expect("a metric's name is well formed");
        self.register(gauges.clone());
        gauges
    }

    fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(buckets);
        let histogram = Histogram::with_opts(options).expect("a metric's name is well formed");
        self.register(histogram.clone());
        histogram
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let make = Maker(&registry);
        let commands = make.counters("quoin_commands_total", "Commands answered, by outcome.", "outcome");
        let reads = make.counters("quoin_reads_total", "Reads served, by consistency.", "consistency");
        let reads_refused = make.counter("quoin_reads_refused_total", "Reads not served: no leader, or lag.");
        let log_write_seconds =
            make.histogram("quoin_log_write_seconds", "One log write with its sync.", seconds_buckets());
        let log_write_records =
            make.histogram("quoin_log_write_records", "Records in one log write.", count_buckets());
        let apply_seconds = make.histogram("quoin_apply_seconds", "Applying one entry.", seconds_buckets());
        let batch_commands =
            make.histogram("quoin_batch_commands", "Commands in one entry.", count_buckets());
        let clock_ahead_seconds = make.gauge(
            "quoin_clock_ahead_seconds",
            "This machine's clock minus the cluster's time; beyond 5 either way the clock is wrong.",
        );
        let scrubbed_bytes =
            make.counter("quoin_scrubbed_bytes_total", "Bytes of files read again to find damage.");
        let damage_found =
            make.counter("quoin_damage_found_total", "Files found to be damaged, at each pass over them.");
        let scrub_finished = make.gauge(
            "quoin_scrub_finished_seconds",
            "When the last pass over all files ended, Unix time; 0: none yet.",
        );
        let corrupt = make.int_gauge("quoin_corrupt", "1 while a member's alarm CORRUPT stands.");
        let leader_changes =
            make.counter("quoin_leader_changes_total", "Leaders that this replica has come to know.");
        let client_garbage = make.counter(
            "quoin_client_garbage_connections_total",
            "Client connections closed for bytes that no client sends.",
        );
        let tls_failed = make.counter(
            "quoin_tls_handshakes_failed_total",
            "Client connections whose TLS handshake failed, or that came without TLS to a port that has it.",
        );
        let tls_reloads = make.counters(
            "quoin_tls_reloads_total",
            "Certificates that were read anew, by outcome; after a bad one those from before still count.",
            "outcome",
        );
        let tls_expires = make.gauges(
            "quoin_tls_certificate_expires_seconds",
            "When the certificate of the ports expires, Unix time.",
            "ports",
        );
        let subscribers_lost = make.counter(
            "quoin_resp_subscribers_lost_total",
            "Connections closed because they did not take the messages of their channels.",
        );
        let http_garbage = make.counter(
            "quoin_http_garbage_connections_total",
            "HTTP connections closed for bytes that are no request.",
        );
        let commands_paced = make.counter(
            "quoin_commands_paced_total",
            "Commands of this node that took their turn because they take long, such as large deletions.",
        );
        let audit_written = make.counter("quoin_audit_records_total", "Records of the audit trail on disk.");
        let audit_lost = make.counter("quoin_audit_lost_total", "Records of the audit trail that were lost.");
        let audit_failing =
            make.int_gauge("quoin_audit_failing", "1 while the audit trail cannot be written.");
        let gauges = Gauges::register(&make);
        Self {
            commands_applied: commands.with_label_values(&["applied"]),
            commands,
            commands_paced,
            reads_linearizable: reads.with_label_values(&["linearizable"]),
            reads_local: reads.with_label_values(&["local"]),
            reads_refused,
            log_write_seconds,
            log_write_records,
            apply_seconds,
            batch_commands,
            clock_ahead_seconds,
            scrubbed_bytes,
            damage_found,
            scrub_finished,
            corrupt,
            leader_changes,
            client_garbage,
            http_garbage,
            subscribers_lost,
            tls_failed,
            tls_reloads,
            tls_expires,
            audit_written,
            audit_lost,
            audit_failing,
            gauges,
            registry,
        }
    }
}

impl Gauges {
    fn register(make: &Maker<'_>) -> Self {
        Self {
            is_leader: make.int_gauge("quoin_is_leader", "1 on the leader."),
            has_leader: make.int_gauge("quoin_has_leader", "1 while a leader is known."),
            term: make.int_gauge("quoin_term", "The consensus term."),
            committed_index: make.int_gauge("quoin_committed_index", "Newest entry known to be committed."),
            applied_index: make.int_gauge("quoin_applied_index", "Newest entry applied."),
            persisted_index: make
                .int_gauge("quoin_persisted_index", "Newest entry whose effects are on disk."),
            revision: make.int_gauge("quoin_revision", "The newest revision."),
            compacted_revision: make.int_gauge("quoin_compacted_revision", "Revisions below are forgotten."),
            queued_commands: make.int_gauge("quoin_queued_commands", "Commands waiting to be proposed."),
            lag_seconds: make
                .gauge("quoin_lag_seconds", "Time since this replica was last known up to date; inf: never."),
            log_bytes: make.int_gauge("quoin_log_bytes", "The log on disk."),
            store_bytes: make.int_gauge("quoin_store_bytes", "The store's tables on disk."),
            store_memtable_bytes: make.int_gauge("quoin_store_memtable_bytes", "Writes not yet in tables."),
            store_tables: make.int_gauge("quoin_store_tables", "Table files."),
            store_waited_seconds: make
                .gauge("quoin_store_waited_seconds", "Time that applying waited for flushing or compaction."),
            no_space: make.int_gauge("quoin_no_space", "1 while writes that grow the store are refused."),
            peer_sent_bytes: make.int_gauge("quoin_peer_sent_bytes", "Bytes sent to other replicas."),
            peer_received_bytes: make.int_gauge("quoin_peer_received_bytes", "Bytes from other replicas."),
            peer_dropped_messages: make
                .int_gauge("quoin_peer_dropped_messages", "Messages not sent: peer away or too slow."),
            peer_garbage_connections: make
                .int_gauge("quoin_peer_garbage_connections", "Peer connections closed for foreign bytes."),
        }
    }

    fn read(&self, status: &Status, no_space: bool, stats: &StoreStats, peers: &Counters) {
        self.is_leader.set(status.raft.is_leader.into());
        self.has_leader.set((status.raft.leader != 0).into());
        self.term.set(status.raft.term as i64);
        self.committed_index.set(status.raft.committed as i64);
        self.applied_index.set(status.progress.index.0 as i64);
        self.persisted_index.set(status.persisted.0 as i64);
        self.revision.set(status.progress.revision.0 as i64);
        self.compacted_revision.set(status.progress.compacted.0 as i64);
        self.queued_commands.set(status.raft.queued as i64);
        self.lag_seconds.set(status.lag_ms.map_or(f64::INFINITY, |ms| ms as f64 / 1e3));
        self.log_bytes.set(status.log_bytes as i64);
        self.store_bytes.set(stats.disk_bytes as i64);
        self.store_memtable_bytes.set(stats.memtable_bytes as i64);
        self.store_tables.set(stats.tables as i64);
        self.store_waited_seconds.set(stats.waited_us as f64 / 1e6);
        self.no_space.set(no_space.into());
        self.peer_sent_bytes.set(peers.sent_bytes.load(Ordering::Relaxed) as i64);
        self.peer_received_bytes.set(peers.received_bytes.load(Ordering::Relaxed) as i64);
        self.peer_dropped_messages.set(peers.dropped.load(Ordering::Relaxed) as i64);
        self.peer_garbage_connections.set(peers.garbage.load(Ordering::Relaxed) as i64);
    }
}

impl Metrics {
    /// The page, in Prometheus's text format.
    pub(crate) fn page(
        &self,
        status: &Status,
        no_space: bool,
        stats: &StoreStats,
        peers: &Counters,
    ) -> Vec<u8> {
        self.gauges.read(status, no_space, stats, peers);
        let mut page = Vec::new();
        prometheus::TextEncoder::new()
            .encode(&self.registry.gather(), &mut page)
            .expect("writing to memory does not fail");
        page
    }
}
