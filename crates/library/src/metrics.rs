//! What is told of tables on the metrics page. Lookups are counted where they are answered; the rest is read off the tables
//! when the page is asked for.
//!
//! **Invariant: Bounded labels.** At most [`NAMED_MAX`] tables have series of their own, the first that there are. All
//! others share those with an empty name, which no table has. A dropped table's series go with it.
//!
//! Deliberately absent: the time of each lookup. Asking the clock twice costs as much as answering a key: one lookup in
//! [`TIMED_EVERY`] is timed.

use super::shelf::Library;
use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    TextEncoder,
};
use quoin_core::table::{Live, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Maximum tables that have series of their own.
const NAMED_MAX: usize = 100;
/// One lookup in so many is timed.
const TIMED_EVERY: u64 = 16;

/// The counters of one table, or of all that have none of their own.
pub(super) struct Meter {
    lookups: IntCounter,
    keys: IntCounter,
    misses: IntCounter,
    failed: IntCounter,
    seconds: Histogram,
}

impl Meter {
    /// A lookup begins. Returns when, if it is one that is timed.
    #[inline]
    pub(super) fn begin(&self) -> Option<Instant> {
        let timed = self.lookups.get().is_multiple_of(TIMED_EVERY);
        self.lookups.inc();
        timed.then(Instant::now)
    }

    /// It was answered.
    #[inline]
    pub(super) fn answered(&self, began: Option<Instant>, keys: usize, found: u32) {
        self.keys.inc_by(keys as u64);
        let misses = (keys as u64).saturating_sub(found.into());
        if misses > 0 {
            self.misses.inc_by(misses);
        }
        if let Some(began) = began {
            self.seconds.observe(began.elapsed().as_secs_f64());
        }
    }

    /// It has no answer.
    #[cold]
    pub(super) fn failed(&self) {
        self.failed.inc();
    }
}

/// The metrics of all tables on this replica.
pub(super) struct Metrics {
    meters: Mutex<Meters>,
    lookups: IntCounterVec,
    keys: IntCounterVec,
    misses: IntCounterVec,
    failed: IntCounterVec,
    seconds: HistogramVec,
}

#[derive(Default)]
struct Meters {
    named: BTreeMap<String, Arc<Meter>>,
    others: Option<Arc<Meter>>,
}

/// From 1 microsecond to about 0.6 seconds, four buckets a decade.
fn seconds_buckets() -> Vec<f64> {
    (0..24).map(|step| 1e-6 * 10f64.powf(f64::from(step) / 4.0)).collect()
}

const WELL_FORMED: &str = "a metric's name is well formed";

fn counters(name: &str, help: &str) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), &["table"]).expect(WELL_FORMED)
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = HistogramOpts::new(
            "quoin_table_lookup_seconds",
            "Looking up in the files, of one lookup in 16: see quoin_table_lookups_total for how many there were.",
        );
        let seconds = seconds.buckets(seconds_buckets());
        Self {
            meters: Mutex::default(),
            lookups: counters("quoin_table_lookups_total", "Lookups in tables on this replica."),
            keys: counters("quoin_table_keys_total", "Keys that were looked up."),
            misses: counters("quoin_table_misses_total", "Keys that were looked up and not found."),
            failed: counters(
                "quoin_table_lookups_failed_total",
                "Lookups without an answer: not loaded, unreadable, or too large.",
            ),
            seconds: HistogramVec::new(seconds, &["table"]).expect(WELL_FORMED),
        }
    }
}

impl Metrics {
    /// The counters of a table.
    pub(super) fn meter(&self, table: &str) -> Arc<Meter> {
        let mut meters = self.meters.lock();
        if let Some(meter) = meters.named.get(table) {
            return Arc::clone(meter);
        }
        if meters.named.len() < NAMED_MAX {
            let meter = Arc::new(self.make(table));
            meters.named.insert(table.into(), Arc::clone(&meter));
            return meter;
        }
        Arc::clone(meters.others.get_or_insert_with(|| Arc::new(self.make(""))))
    }

    fn make(&self, table: &str) -> Meter {
        Meter {
            lookups: self.lookups.with_label_values(&[table]),
            keys: self.keys.with_label_values(&[table]),
            misses: self.misses.with_label_values(&[table]),
            failed: self.failed.with_label_values(&[table]),
            seconds: self.seconds.with_label_values(&[table]),
        }
    }

    /// The series of all tables but these go.
    pub(super) fn keep_only(&self, tables: &BTreeSet<&str>) {
        for (table, _) in self.meters.lock().named.extract_if(.., |table, _| !tables.contains(&table[..])) {
            let of = &[&table[..]];
            for counters in [&self.lookups, &self.keys, &self.misses, &self.failed] {
                // An error: it has none.
                let _ = counters.remove_label_values(of);
            }
            let _ = self.seconds.remove_label_values(of);
        }
    }

    /// The name under which a table's numbers are told.
    fn label<'a>(&self, table: &'a str) -> &'a str {
        self.meter(table);
        if self.meters.lock().named.contains_key(table) { table } else { "" }
    }
}

/// Numbers that are read off the tables.
struct Gauges {
    active: IntGaugeVec,
    versions: IntGaugeVec,
    ready: IntGaugeVec,
    missing: IntGaugeVec,
    bytes: IntGaugeVec,
    changes: IntGaugeVec,
    changes_bytes: IntGaugeVec,
}

impl Gauges {
    fn new() -> Self {
        let gauges =
            |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["table"]).expect(WELL_FORMED);
        Self {
            active: gauges("quoin_table_active_version", "The version that answers; 0: none yet."),
            versions: gauges("quoin_table_versions", "Versions that are kept."),
            ready: gauges("quoin_table_versions_ready", "Versions whose files this replica has, checked."),
            missing: gauges(
                "quoin_table_not_loaded",
                "1 while the active version is not loaded on this replica: lookups here fail.",
            ),
            bytes: gauges("quoin_table_bytes", "Bytes of the files of versions that are loaded."),
            changes: gauges("quoin_table_changes", "Changed keys that are held over the files."),
            changes_bytes: gauges("quoin_table_changes_bytes", "Memory that they take, about."),
        }
    }

    fn all(&self) -> [&IntGaugeVec; 7] {
        let Self { active, versions, ready, missing, bytes, changes, changes_bytes } = self;
        [active, versions, ready, missing, bytes, changes, changes_bytes]
    }
}

/// What the log says of a table.
struct Told {
    name: String,
    active: u64,
    versions: Vec<Arc<Version>>,
    changes: usize,
    changes_bytes: usize,
}

/// Taken out, so that whoever changes tables does not wait for the page.
fn told(live: &Live) -> Vec<Told> {
    let look = live.look();
    let told = look.tables().map(|(name, state)| Told {
        name: name.into(),
        active: state.table.active,
        versions: state.versions.values().map(Arc::clone).collect(),
        changes: state.changed(),
        changes_bytes: state.changes_bytes(),
    });
    told.collect()
}

impl Library {
    /// Appends what is to be told of tables to a page in Prometheus's text format.
    pub fn append_metrics(&self, live: &Live, page: &mut Vec<u8>) {
        let gauges = Gauges::new();
        for Told { name, active, versions, changes, changes_bytes } in told(live) {
            let of = &[self.metrics.label(&name)];
            let add = |gauges: &IntGaugeVec, number: u64| gauges.with_label_values(of).add(number as i64);
            let loaded: Vec<_> = versions.iter().filter_map(|version| self.get(&name, version)).collect();
            // Versions share layers.
            let layers: BTreeMap<_, _> = loaded
                .iter()
                .flat_map(|stack| stack.layers())
                .map(|layer| layer.manifest())
                .map(|manifest| (&manifest.id, manifest.all_files().map(|file| file.bytes).sum::<u64>()))
                .collect();
            let active_version = versions.iter().find(|version| version.number == active);
            let is_missing = active_version.is_some_and(|version| self.get(&name, version).is_none());
            // Of several tables the sum would say nothing.
            add(&gauges.active, if of[0].is_empty() { 0 } else { active });
            add(&gauges.versions, versions.len() as u64);
            add(&gauges.ready, loaded.len() as u64);
            add(&gauges.missing, is_missing.into());
            add(&gauges.bytes, layers.values().sum());
            add(&gauges.changes, changes as u64);
            add(&gauges.changes_bytes, changes_bytes as u64);
        }
        let metrics = &self.metrics;
        let counters = [&metrics.lookups, &metrics.keys, &metrics.misses, &metrics.failed];
        let mut families: Vec<_> = gauges.all().into_iter().flat_map(Collector::collect).collect();
        families.extend(counters.into_iter().flat_map(Collector::collect));
        families.extend(metrics.seconds.collect());
        families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new().encode(&families, page).expect("writing to memory does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_beyond_a_bound_share_their_series_and_dropped_ones_lose_theirs() {
        let metrics = Metrics::default();
        let names: Vec<String> = (0..NAMED_MAX + 50).map(|number| format!("t{number:04}")).collect();
        for name in &names {
            let meter = metrics.meter(name);
            let began = meter.begin();
            meter.answered(began, 10, 7);
        }
        let series = || metrics.keys.collect()[0].get_metric().len();
        assert_eq!(series(), NAMED_MAX + 1);
        assert_eq!(metrics.misses.with_label_values(&[""]).get(), 50 * 3);
        assert_eq!(metrics.keys.with_label_values(&["t0000"]).get(), 10);
        assert_eq!((metrics.label("t0000"), metrics.label("t0149")), ("t0000", ""));

        metrics.keep_only(&names[1..3].iter().map(|name| &name[..]).collect());
        assert_eq!(series(), 3);
        assert_eq!(metrics.label("t0149"), "t0149");
    }

    #[test]
    fn one_lookup_in_sixteen_is_timed() {
        let metrics = Metrics::default();
        let meter = metrics.meter("t");
        for _ in 0..160 {
            let began = meter.begin();
            meter.answered(began, 1, 1);
        }
        meter.failed();
        assert_eq!((meter.lookups.get(), meter.misses.get(), meter.failed.get()), (160, 0, 1));
        assert_eq!(meter.seconds.get_sample_count(), 10);
    }
}
