//! What etcd's dashboards, alerts and probes ask for, by etcd's names and with etcd's meaning, beside Quoin's own.
//!
//! Deliberately absent: `grpc_server_*`. A count of each call by method and outcome would be paid for by every call.

use crate::grpc::API_VERSION;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, Gauge, Histogram, IntCounter, IntGauge, Opts, TextEncoder};
use quoin_engine::Engine;

/// Outcomes of commands that etcd counts as failed proposals.
const FAILED: &[&str] = &["no_leader", "leader_changed", "unknown", "stopped"];

/// Appends the metrics to a page in Prometheus's text format.
pub(super) fn append(engine: &Engine, page: &mut Vec<u8>) {
    TextEncoder::new().encode(&families(engine), page).expect("writing to memory does not fail");
}

fn families(engine: &Engine) -> Vec<MetricFamily> {
    let (status, metrics) = (engine.status(), engine.metrics());
    let raft = &status.raft;
    let failed = FAILED.iter().map(|outcome| metrics.commands.with_label_values(&[outcome]).get()).sum();
    let learner = u64::from(raft.learners.contains(&status.id));
    let id = format!("{:x}", status.id);
    vec![
        gauge("etcd_server_has_leader", "Whether or not a leader exists.", u64::from(raft.leader != 0)),
        gauge("etcd_server_is_leader", "Whether or not this member is a leader.", u64::from(raft.is_leader)),
        gauge("etcd_server_is_learner", "Whether or not this member is a learner.", learner),
        labelled("etcd_server_id", "Server or member ID in hexadecimal format.", "server_id", &id),
        labelled("etcd_server_version", "The API's version.", "server_version", API_VERSION),
        labelled("etcd_cluster_version", "The API's version.", "cluster_version", API_VERSION),
        counter(
            "etcd_server_leader_changes_seen_total",
            "The number of leader changes seen.",
            metrics.leader_changes.get(),
        ),
        gauge("etcd_server_proposals_committed_total", "Newest entry known to be committed.", raft.committed),
        gauge("etcd_server_proposals_applied_total", "Newest entry applied.", status.progress.index.0),
        gauge("etcd_server_proposals_pending", "Commands waiting to be proposed.", raft.queued as u64),
        counter(
            "etcd_server_proposals_failed_total",
            "Commands that failed: no leader, lost, stopped.",
            failed,
        ),
        gauge("etcd_server_quota_backend_bytes", "Bytes that the store may take.", engine.space()),
        gauge("etcd_mvcc_db_total_size_in_bytes", "The store, on disk and in memory.", status.store_bytes),
        gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "As the total size.", status.store_bytes),
        gauge("etcd_debugging_mvcc_current_revision", "The newest revision.", status.progress.revision.0),
        gauge(
            "etcd_debugging_mvcc_compact_revision",
            "Revisions below are forgotten.",
            status.progress.compacted.0,
        ),
        renamed(
            "etcd_disk_wal_fsync_duration_seconds",
            "One log write with its sync.",
            &metrics.log_write_seconds,
        ),
        renamed(
            "etcd_disk_backend_commit_duration_seconds",
            "Writing one entry's effects to the store.",
            &metrics.apply_seconds,
        ),
    ]
}

fn gauge(name: &str, help: &str, value: u64) -> MetricFamily {
    let gauge = Gauge::new(name, help).expect("a metric's name is well formed");
    gauge.set(value as f64);
    only(&gauge)
}

fn counter(name: &str, help: &str, value: u64) -> MetricFamily {
    let counter = IntCounter::new(name, help).expect("a metric's name is well formed");
    counter.inc_by(value);
    only(&counter)
}

/// A gauge of 1, whose label is what it tells.
fn labelled(name: &str, help: &str, label: &str, value: &str) -> MetricFamily {
    let options = Opts::new(name, help).const_label(label, value);
    let gauge = IntGauge::with_opts(options).expect("a metric's name is well formed");
    gauge.set(1);
    only(&gauge)
}

fn renamed(name: &str, help: &str, histogram: &Histogram) -> MetricFamily {
    let mut family = only(histogram);
    family.set_name(name.into());
    family.set_help(help.into());
    family
}

fn only(collector: &impl Collector) -> MetricFamily {
    collector.collect().pop().expect("a metric is a family")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::alone;

    #[test]
    fn dashboards_for_etcd_find_their_numbers() {
        alone(|engine| async move {
            let mut page = engine.metrics_page();
            append(&engine, &mut page);
            let page = String::from_utf8(page).unwrap();
            for line in [
                "etcd_server_has_leader 1",
                "etcd_server_is_leader 1",
                "etcd_server_leader_changes_seen_total 1",
                "etcd_server_proposals_failed_total 0",
                "etcd_server_id{server_id=\"1\"} 1",
                "# TYPE etcd_disk_wal_fsync_duration_seconds histogram",
                "# TYPE etcd_server_leader_changes_seen_total counter",
            ] {
                assert!(page.lines().any(|found| found == line), "{line}: {page}");
            }
            let of = |name: &str| {
                page.lines().find(|line| line.starts_with(name)).map(|line| line.rsplit(' ').next())
            };
            assert_eq!(of("etcd_disk_wal_fsync_duration_seconds_count"), of("quoin_log_write_seconds_count"));
            assert_eq!(of("etcd_server_proposals_applied_total "), of("quoin_applied_index "));
        });
    }
}
