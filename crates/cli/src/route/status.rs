//! What an agent says about itself, to Prometheus and to people.

use anyhow::{Context, Result};
use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Serialize;
use std::fmt::Write;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// What an agent has done.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Status {
    /// All changes up to this revision have been handed to the hook or the kernel.
    pub(super) revision: i64,
    /// Rules of the copy.
    pub(super) rules: usize,
    /// The cluster has said that this agent lacks nothing, and has not been lost since.
    pub(super) up_to_date: bool,
    /// How often a watch broke, and was begun again.
    pub(super) watches_broken: u64,
    /// With `--apply-linux`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tables: Option<Tables>,
}

/// The status, as those who change it and those who show it share it.
pub(super) type Board = Arc<Mutex<Status>>;

/// Rules in Linux's tables, and those that are not there.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tables {
    /// Rules that the tables hold.
    pub(super) in_effect: usize,
    /// Rules of which the kernel has refused an entry.
    pub(super) refused: usize,
    /// Rules without a MAC address: there is nothing to write.
    pub(super) without_mac: usize,
    /// Rules of networks without a device.
    pub(super) without_device: usize,
    /// MAC addresses, or addresses, for which rules want different values.
    pub(super) conflicts: usize,
    /// Devices of the name that the agent was given.
    pub(super) devices: usize,
    /// How often all tables were compared with the rules.
    pub(super) comparisons: u64,
    /// How long the last of them took, with what it wrote.
    pub(super) last_comparison_s: f64,
    /// The last attempt to write failed: the tables may lack changes. It is made up for at the next occasion.
    pub(super) behind: bool,
    /// Comparisons that failed.
    pub(super) comparisons_failed: u64,
    /// Entries written or removed because a comparison found a difference.
    pub(super) written: Written,
    /// The first refused entries.
    pub(super) refusals: Vec<Refused>,
}

/// Entries by what made the agent compare.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Written {
    pub(super) start: u64,
    /// A device has changed.
    pub(super) links: u64,
    /// Periodically: another hand had changed the tables.
    pub(super) periodic: u64,
}

/// A refused entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Refused {
    /// The first of the rules that want it.
    pub(super) rules: Vec<String>,
    pub(super) device: String,
    pub(super) entry: String,
    pub(super) error: String,
}

impl Status {
    /// Whether this host has what the cluster has, but for what the kernel refuses.
    fn is_ready(&self) -> bool {
        self.up_to_date && !self.tables.as_ref().is_some_and(|tables| tables.behind)
    }

    /// The page that Prometheus reads.
    fn page(&self) -> String {
        let mut page = Page::default();
        page.gauge(
            "revision",
            "All changes up to this revision are handed to the hook or the kernel",
            self.revision,
        );
        page.gauge("rules", "Rules of the copy", self.rules);
        page.gauge(
            "up_to_date",
            "1 if the cluster has said that nothing is missing",
            u8::from(self.up_to_date),
        );
        page.counter("watches_broken", "Watches that broke and were begun again", self.watches_broken);
        let Some(tables) = &self.tables else { return page.0 };
        page.gauge("rules_in_effect", "Rules that Linux's tables hold", tables.in_effect);
        page.gauge("rules_refused", "Rules of which the kernel refuses an entry", tables.refused);
        page.gauge("rules_without_mac", "Rules without a MAC address, which are skipped", tables.without_mac);
        page.gauge(
            "rules_without_device",
            "Rules of networks without a device, which are skipped",
            tables.without_device,
        );
        page.gauge("conflicts", "Entries for which rules want different values", tables.conflicts);
        page.gauge("devices", "Devices that the agent writes to", tables.devices);
        page.gauge("behind", "1 if the last attempt to write to the kernel failed", u8::from(tables.behind));
        page.counter("comparisons", "Comparisons of all tables with the rules", tables.comparisons);
        page.counter("comparisons_failed", "Comparisons that failed", tables.comparisons_failed);
        page.gauge("last_comparison_seconds", "What the last comparison took", tables.last_comparison_s);
        let Written { start, links, periodic } = tables.written;
        page.head(
            "entries_repaired_total",
            "counter",
            "Entries in which tables differed from the rules, by when it was found",
        );
        for (why, count) in [("start", start), ("links", links), ("periodic", periodic)] {
            page.line(&format!("entries_repaired_total{{when=\"{why}\"}}"), count);
        }
        page.0
    }
}

/// A page in Prometheus's text format. Names begin with `quoin_agent_`.
#[derive(Default)]
struct Page(String);

impl Page {
    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, "gauge", help);
        self.line(name, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("{name}_total");
        self.head(&name, "counter", help);
        self.line(&name, value);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP quoin_agent_{name} {help}.\n# TYPE quoin_agent_{name} {kind}");
    }

    fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "quoin_agent_{name} {value}");
    }
}

/// Serves `/metrics`, `/status` and `/readyz` at `address`, as long as the future is polled.
///
/// # Errors
/// The address is taken.
pub(super) async fn serve(
    address: SocketAddr,
    board: Board,
) -> Result<impl Future<Output = std::io::Result<()>>> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /status and /readyz");
    let (metrics, status, ready) = (Arc::clone(&board), Arc::clone(&board), board);
    let pages = Router::new()
        .route(
            "/metrics",
            get(async move || ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.lock().page())),
        )
        .route("/status", get(async move || Json(status.lock().clone())))
        .route(
            "/readyz",
            get(async move || match ready.lock().is_ready() {
                true => (StatusCode::OK, "ready\n"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "not ready: see /status\n"),
            }),
        );
    Ok(async move { axum::serve(listener, pages).await })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_line_for_each_number() {
        let mut status = Status { revision: 7, rules: 3, up_to_date: true, ..Status::default() };
        assert!(status.page().ends_with(
            "# TYPE quoin_agent_watches_broken_total counter\nquoin_agent_watches_broken_total 0\n"
        ));
        assert!(status.is_ready());
        let written = Written { start: 5, links: 0, periodic: 2 };
        status.tables = Some(Tables { in_effect: 2, refused: 1, behind: true, written, ..Tables::default() });
        assert!(!status.is_ready());
        let page = status.page();
        for line in [
            "quoin_agent_revision 7",
            "quoin_agent_rules 3",
            "quoin_agent_up_to_date 1",
            "quoin_agent_rules_in_effect 2",
            "quoin_agent_rules_refused 1",
            "quoin_agent_behind 1",
            "quoin_agent_entries_repaired_total{when=\"periodic\"} 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }
}
