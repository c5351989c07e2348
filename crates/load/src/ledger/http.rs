//! Virtual users of the ledger's HTTP/JSON, each with a keep-alive connection.

use super::plan::{Maker, Plan};
use crate::client::Http;
use crate::client::ledger::CURRENCY;
use crate::runner::{self, Counted, Run, Work};
use anyhow::{Result, bail, ensure};
use std::io::Write;
use std::sync::Arc;
use uuid::Uuid;

/// What a virtual user does.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Create an account first and transfer to it.
    pub(super) journey: bool,
    /// Transfers are answered when they are accepted, not when they are done.
    pub(super) accepted_only: bool,
}

/// Runs virtual users against the servers at `addresses`.
pub(super) async fn run(run: &Run, addresses: &[String], plan: &Arc<Plan>, kind: Kind) -> Result<Counted> {
    ensure!(!addresses.is_empty(), "give the servers' HTTP addresses: --http-endpoints or --endpoints-file");
    let worker = |number: usize| VirtualUser {
        http: Http::new(&addresses[number % addresses.len()]),
        maker: plan.maker(number),
        body: Vec::new(),
        kind,
    };
    runner::run(run, |shared| runner::unary(run, shared, worker)).await
}

#[derive(Clone)]
struct VirtualUser {
    http: Http,
    maker: Maker,
    body: Vec<u8>,
    kind: Kind,
}

impl VirtualUser {
    /// Posts the body.
    async fn post(&mut self, path: &str, headers: &str, expected: u16) -> Result<()> {
        let answer = self.http.post(path, headers, &self.body).await?;
        if answer.status != expected {
            bail!("{path}: {} {}", answer.status, String::from_utf8_lossy(answer.body));
        }
        Ok(())
    }

    async fn transfer(&mut self, debit: u128, credit: u128) -> Result<()> {
        let [id, debit, credit] = [self.maker.id(), debit, credit].map(Uuid::from_u128);
        let cents = self.maker.cents();
        self.body.clear();
        write!(
            self.body,
            r#"{{"id":"{id}","debit_account":"{debit}","credit_account":"{credit}","amount":"0.{cents:02}","currency":"{CURRENCY}"}}"#
        )?;
        let (headers, expected) =
            if self.kind.accepted_only { ("prefer: respond-async\r\n", 202) } else { ("", 201) };
        self.post("/v1/transfers", headers, expected).await
    }
}

impl Work for VirtualUser {
    async fn operation(&mut self) -> Result<()> {
        let (debit, mut credit) = self.maker.pair();
        if self.kind.journey {
            let id = Uuid::now_v7();
            credit = id.as_u128();
            self.body.clear();
            write!(self.body, r#"{{"id":"{id}","currency":"{CURRENCY}"}}"#)?;
            self.post("/v1/accounts", "", 201).await?;
        }
        self.transfer(debit, credit).await
    }
}
