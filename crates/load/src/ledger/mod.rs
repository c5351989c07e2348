//! `quoin bench ledger`: batches, single transfers and streams over gRPC, and virtual users over HTTP.
//!
//! Every run creates and funds its own accounts, so that runs do not depend on each other. Every answer is
//! checked: a refused transfer counts as an error. `plan.rs` makes the transfers, `grpc.rs` and `http.rs`
//! send them.

mod grpc;
mod http;
mod plan;

use crate::client;
use crate::options::{Load, name_of};
use crate::report::{Outcome, Report};
use crate::runner;
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use plan::{Plan, Shape};

/// A run on the ledger.
#[derive(Args, Clone, Debug)]
pub struct LedgerBench {
    /// Cases to measure, in this order
    #[arg(value_enum, required = true)]
    cases: Vec<Case>,
    #[command(flatten)]
    shape: Shape,
    /// HTTP addresses of the servers, in the order of --endpoints [default: those of the endpoints file]
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,...")]
    http_endpoints: Vec<String>,
    #[command(flatten)]
    load: Load,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Batches over gRPC, one in flight per client
    Batch,
    /// Batches over a bidirectional stream, four in flight per client
    Stream,
    /// Single transfers over gRPC
    Single,
    /// A transfer over HTTP, answered when it is done
    HttpSync,
    /// A transfer over HTTP, answered when it is accepted
    HttpAsync,
    /// Create an account and transfer to it over HTTP, both answered when done
    HttpJourneySync,
    /// Create an account and transfer to it over HTTP, the transfer answered when accepted
    HttpJourneyAsync,
}

/// Measures the cases in turn.
pub(crate) async fn run(mut options: LedgerBench) -> Result<()> {
    ensure!(options.shape.accounts >= 2, "--accounts {} must be at least 2", options.shape.accounts);
    let load = &mut options.load;
    let endpoints = load.resolve().await?;
    let known = if options.http_endpoints.is_empty() { &load.http } else { &options.http_endpoints };
    let http = load.of_chosen(&endpoints, known);
    let channels = client::connect(&endpoints, load.connections).await?;
    let mut report = Report::new(load.json);
    for case in &options.cases {
        let plan = Plan::prepare(options.shape, &channels[0]).await.context("creating accounts")?;
        let run = load.plan();
        let over_http = |journey, accepted_only| http::Kind { journey, accepted_only };
        let counted = match case {
            Case::Batch => {
                runner::run(&run, |shared| grpc::batches(&channels, &plan, shared, load.clients)).await
            }
            Case::Stream => {
                runner::run(&run, |shared| grpc::streams(&channels, &plan, shared, load.clients)).await
            }
            Case::Single => {
                let worker =
                    |number: usize| grpc::Single::new(&channels[number % channels.len()], plan.maker(number));
                runner::run(&run, |shared| runner::unary(&run, shared, worker)).await
            }
            Case::HttpSync => http::run(&run, &http, &plan, over_http(false, false)).await,
            Case::HttpAsync => http::run(&run, &http, &plan, over_http(false, true)).await,
            Case::HttpJourneySync => http::run(&run, &http, &plan, over_http(true, false)).await,
            Case::HttpJourneyAsync => http::run(&run, &http, &plan, over_http(true, true)).await,
        };
        report.add(Outcome::new(name_of(*case), load.setting(0), counted?))?;
    }
    report.end()
}
