//! `quoin bench route`: rules by (VNI, IP), over `quoin.route.v1` or as keys over etcd's API, so that etcd is
//! measured with the same code.
//!
//! `rules.rs` makes the rules and writes them, `worker.rs` looks them up, `watch.rs` watches them.

mod options;
mod rules;
mod watch;
mod worker;

pub(crate) use options::RouteBench;

use crate::client::Channel;
use crate::options::name_of;
use crate::report::{Outcome, Report};
use crate::{client, runner};
use anyhow::{Context, Result, bail, ensure};
use options::{Api, Case};
use std::sync::Arc;
use std::time::Instant;
use worker::Worker;

/// Measures the cases in turn.
pub(crate) async fn run(mut options: RouteBench) -> Result<()> {
    ensure!(options.rules > 0 && options.batch > 0, "--rules and --batch must be above 0");
    ensure!(options.watchers > 0, "--watchers must be above 0");
    let endpoints = options.load.resolve().await?;
    let channels = client::connect(&endpoints, options.load.connections).await?;
    if !options.no_fill {
        rules::fill(&channels[0], options.api, options.rules).await.context("writing the rules")?;
    }
    let mut report = Report::new(options.load.json);
    for case in options.cases.clone() {
        let counted = measure(case, &channels, &options).await?;
        let name = match options.api {
            Api::Route => name_of(case),
            Api::Etcd => format!("etcd {}", name_of(case)),
        };
        report.add(Outcome::new(name, options.load.setting(0), counted))?;
    }
    report.end()
}

async fn measure(case: Case, channels: &[Channel], options: &RouteBench) -> Result<runner::Counted> {
    let run = options.load.plan();
    let worker =
        |number: usize| Worker::new(case, channels[number % channels.len()].clone(), number, options);
    match (case, options.api) {
        (Case::Get | Case::GetLocal | Case::Put, _) => {
            runner::run(&run, |shared| runner::unary(&run, shared, worker)).await
        }
        (Case::GetStream | Case::GetStreamLocal, Api::Route) => {
            runner::run(&run, |shared| {
                let stream = |number| tokio::spawn(worker(number).streams(Arc::clone(shared)));
                (0..run.clients).map(stream).collect()
            })
            .await
        }
        (Case::GetStream | Case::GetStreamLocal, Api::Etcd) => bail!("etcd's API has no stream of reads"),
        (Case::NewWatcher, api) => {
            let (channel, rules) = (channels[0].clone(), options.rules);
            runner::run(&run, |shared| {
                vec![tokio::spawn(watch::new_watchers(channel, api, rules, Arc::clone(shared)))]
            })
            .await
        }
        (Case::Update, api) => {
            let rate = options.load.rate.context("update needs --rate, the updates per second")?;
            let watchers = watch::watch_all(channels, api, options.watchers).await?;
            let epoch = Instant::now();
            runner::run(&run, |shared| {
                let watch = |watchers| tokio::spawn(watch::count_all(watchers, Arc::clone(shared), epoch));
                let mut clients: Vec<_> = watchers.into_iter().map(watch).collect();
                clients.push(tokio::spawn(worker(0).update(Arc::clone(shared), epoch, rate)));
                clients
            })
            .await
        }
    }
}
