//! `quoin bench kv`: keys over etcd's API or `quoin.kv.v1`, so that etcd is measured with the same code.
//!
//! `plan.rs` says what one operation of a case does, `stream.rs` does operations over streams.

mod plan;
mod stream;

use crate::options::{Data, Load, name_of};
use crate::report::{Outcome, Report};
use crate::{client, runner};
use anyhow::{Context, Result, ensure};
use clap::Args;
use plan::{Case, Plan};

/// A run over keys.
#[derive(Args, Clone, Debug)]
pub struct KvBench {
    /// Cases to measure, in this order
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    load: Load,
}

/// Measures the cases in turn.
pub(crate) async fn run(mut options: KvBench) -> Result<()> {
    let Data { keys, value_bytes } = options.data;
    ensure!(keys > 0, "--keys must be above 0");
    let load = &mut options.load;
    let endpoints = load.resolve().await?;
    let mut report = Report::new(load.json);
    for case in options.cases {
        let channels = client::connect(&endpoints, load.connections).await?;
        let plan = Plan::new(case, keys, value_bytes);
        if plan.reads_written_keys() {
            plan::fill(&channels, &plan).await.context("writing the keys to read")?;
        }
        let run = load.plan();
        let counted = runner::run(&run, |shared| {
            if plan.is_stream() {
                stream::clients(&channels, &plan, shared, load.clients)
            } else {
                let worker = |number: usize| plan.worker(&channels[number % channels.len()], number as u64);
                runner::unary(&run, shared, worker)
            }
        });
        report.add(Outcome::new(name_of(case), load.setting(value_bytes), counted.await?))?;
    }
    report.end()
}
