//! `quoin bench resp`: keys over Redis's protocol, so that Redis is measured with the same code.
//!
//! `keys.rs` says what is asked, `setup.rs` connects and writes before a run, `driver.rs` makes the load
//! (`inbox.rs` gathers replies, `alarm.rs` wakes it on time), `request.rs` and `reply.rs` are the protocol.

mod alarm;
pub(crate) mod driver;
mod inbox;
mod keys;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod setup;

use crate::options::{Data, Load, name_of};
use crate::report::{Outcome, Report};
use crate::runner;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use driver::Shape;
use keys::{KEYS_MAX, Keys, Words};
use std::sync::Arc;

/// A run over keys. Each client has its own connection.
#[derive(Args, Clone, Debug)]
pub struct RespBench {
    /// Cases to measure, in this order
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    wire: Wire,
    #[command(flatten)]
    load: Load,
}

/// How requests go over the wire.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Requests that a connection sends together (Redis's protocol only)
    #[arg(long, default_value_t = 1, value_name = "REQUESTS")]
    pub(crate) pipeline: usize,
    /// Threads that make the load (Redis's protocol only)
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

impl Wire {
    pub(crate) fn shape(&self) -> Result<Shape> {
        ensure!(self.pipeline > 0 && self.threads > 0, "--pipeline and --threads must be above 0");
        Ok(Shape { pipeline: self.pipeline, threads: self.threads })
    }

    /// A case's name in the report.
    pub(crate) fn name(&self, case: String) -> String {
        if self.pipeline == 1 { case } else { format!("{case} x{}", self.pipeline) }
    }
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Write a random key
    Set,
    /// Read a random existing key, linearizable where the server can
    Get,
    /// Read a random existing key from the replica's own state (READONLY)
    GetLocal,
}

/// Measures the cases in turn.
pub(crate) async fn run(mut options: RespBench) -> Result<()> {
    let Data { keys, value_bytes } = options.data;
    ensure!((1..=KEYS_MAX).contains(&keys), "--keys must be from 1 to {KEYS_MAX}");
    let shape = options.wire.shape()?;
    let load = &mut options.load;
    let endpoints = load.resolve_resp().await?;
    let words = Arc::new(Words::new(value_bytes));
    let mut report = Report::new(load.json);
    for case in options.cases {
        if case != Case::Set {
            let (endpoints, words) = (endpoints.clone(), Arc::clone(&words));
            let fill = move || setup::fill(&endpoints, 0..keys, |key, out| words.set(key, out));
            tokio::task::spawn_blocking(fill).await??;
        }
        let hello: &[&str] = if case == Case::GetLocal { &["READONLY"] } else { &[] };
        let connections = setup::connect(&endpoints, load.clients, hello)?;
        let script = |number: usize| Keys::new(&words, case != Case::Set, keys, number as u64 + 1);
        let plan = load.plan();
        let counted =
            runner::run(&plan, |shared| driver::clients(&plan, shape, connections, shared, script)).await?;
        report.add(Outcome::new(options.wire.name(name_of(case)), load.setting(value_bytes), counted))?;
    }
    report.end()
}
