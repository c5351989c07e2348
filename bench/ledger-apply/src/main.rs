//! Measures what a transfer costs in apply and in the store, without network and log: processor time per transfer,
//! background work included, and the longest batches.
//!
//! `cargo run --release --manifest-path bench/ledger-apply/Cargo.toml -- [--accounts N] [--transfers N] [--cache-mib N]
//! [--folder DIR] [--only random] [--warm 1]`
//!
//! Creates the accounts, each with a deposit, or takes those of the folder as they are (nothing of them is in memory
//! then). `--folder` must name an empty folder, one that does not exist, or one of an earlier run with as many
//! accounts; the default is a temporary one.

use anyhow::{Context as _, Result};
use quoin_core::ledger::{Code, Kind, NewAccount, Operation, Response, Rule, Transfer, Transfers};
use quoin_core::{Batch, Command, Index, Machines, Reply, Stamp, machines};
use quoin_store::{LsmStore, StoreOptions};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::{Duration, Instant};

const BATCH: u64 = 8190;
const ACCOUNTS_AT_ONCE: u64 = 1000;
/// Where the time of the log begins: in 2025.
const EPOCH_MS: u64 = 1_750_000_000_000;

struct Settings {
    accounts: u64,
    transfers: u64,
    folder: Option<String>,
    /// Only cases whose names contain this.
    only: String,
    /// Read the accounts into memory before the first case.
    warm: bool,
    options: StoreOptions,
}

fn main() -> Result<()> {
    let settings = settings()?;
    let scratch = tempfile::tempdir()?;
    let folder = settings.folder.as_deref().map_or(scratch.path(), Path::new);
    let mut ledger = Ledger::open(folder, settings.options.clone())?;
    println!(
        "{:<34}{:>10}{:>9}{:>9}{:>9}{:>9}{:>10}",
        "", "ops/s", "cpu us", "wall us", "p50 ms", "max ms", "MiB"
    );
    if ledger.machines.progress().revision.0 < 2 {
        let commands = settings.accounts.div_ceil(ACCOUNTS_AT_ONCE);
        ledger.measure("create accounts with a deposit", commands, ACCOUNTS_AT_ONCE, Ledger::create)?;
    }
    let reads = ledger.machines.warm(&ledger.store);
    if reads && settings.warm {
        let (before, cpu) = (Instant::now(), cpu_time());
        while ledger.machines.warm(&ledger.store) {}
        println!("accounts read in {:.1?}, cpu {:.1?}", before.elapsed(), cpu_time() - cpu);
    }
    let batches = (settings.transfers / BATCH).max(1);
    let (accounts, few) = (settings.accounts, settings.accounts.min(10_000));
    for round in 0..2 {
        let mut run = |name: &str, among: u64, random: bool| {
            if !name.contains(&settings.only) {
                return Ok(());
            }
            let name = format!("{name}, round {round}");
            let mut order = Random(round + among + (u64::from(random) << 40));
            ledger.measure(&name, batches, BATCH, |ledger, _| ledger.transfer(&mut order, among, random))
        };
        run("among all, ordered ids", accounts, false)?;
        run("among 10,000, ordered ids", few, false)?;
        run("among 10,000, random ids", few, true)?;
        run("among all, random ids", accounts, true)?;
    }
    ledger.store.flush()?;
    println!("{:?}", ledger.store.stats());
    Ok(())
}

/// One replica's state, and what applies to it.
struct Ledger {
    store: LsmStore,
    machines: Machines,
    index: u64,
    ids: u64,
}

impl Ledger {
    fn open(folder: &Path, options: StoreOptions) -> Result<Self> {
        let store = LsmStore::open(folder, 1, options)?;
        if machines::read_progress(&store)?.index == Index(0) {
            machines::found(&store, bytes::Bytes::new(), &[]);
        }
        let machines = Machines::open(&store)?;
        let index = machines.progress().index.0;
        Ok(Self { store, machines, index, ids: 0 })
    }

    fn stamp(&self) -> u64 {
        EPOCH_MS + self.index * 20
    }

    fn apply(&mut self, command: Command) -> Result<Response> {
        let payload = Batch::encode(Stamp(self.stamp()), &[command]);
        self.index += 1;
        let progress = self.machines.progress();
        let outcome = self.machines.apply(&self.store, Index(self.index), progress.term, payload)?;
        self.store.batch_applied(Index(self.index))?;
        match outcome.replies.into_iter().next() {
            Some(Reply::Ledger(reply)) => Ok(reply.response),
            _ => anyhow::bail!("entry {} was not applied", self.index),
        }
    }

    fn create(&mut self, number: u64) -> Result<()> {
        let new = |place: u64| {
            let id = account(number * ACCOUNTS_AT_ONCE + place);
            NewAccount {
                currency: "EUR".into(),
                rule: Rule::NoOverdraft.into(),
                opening: Some((1 << 40).into()),
                ..NewAccount::default()
            }
            .with_id(id)
        };
        let accounts = (0..ACCOUNTS_AT_ONCE).map(new).collect();
        match self.apply(Operation::create_accounts(accounts).into_command())? {
            Response::Accounts(results, _) if results.iter().all(Result::is_ok) => Ok(()),
            _ => anyhow::bail!("some accounts could not be created"),
        }
    }

    fn transfer(&mut self, random: &mut Random, accounts: u64, random_ids: bool) -> Result<()> {
        let mut transfers = Transfers::new(false);
        let ms = u128::from(self.stamp());
        for _ in 0..BATCH {
            let debit = random.next() % accounts;
            let credit = (debit + 1 + random.next() % (accounts - 1)) % accounts;
            self.ids += 1;
            let id = if random_ids {
                u128::from(random.next()) << 64 | u128::from(random.next())
            } else {
                ms << 80 | 7 << 76 | u128::from(self.ids)
            };
            let amount = u128::from(1 + random.next() % 99);
            let kind = Kind::Single { debit: account(debit), credit: account(credit), amount };
            transfers.push(&Transfer::new(id, kind));
        }
        match self.apply(transfers.into_command())? {
            Response::Transfers(replies) if replies.iter().all(|reply| reply.code == Code::Ok) => Ok(()),
            _ => anyhow::bail!("some transfers were refused: does the folder have as many accounts?"),
        }
    }

    fn measure(
        &mut self,
        name: &str,
        batches: u64,
        each: u64,
        mut batch: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<()> {
        let mut walls = Vec::new();
        let (started, cpu_before) = (Instant::now(), cpu_time());
        for number in 0..batches {
            let began = Instant::now();
            batch(self, number)?;
            walls.push(began.elapsed());
        }
        let (wall, cpu) = (started.elapsed(), cpu_time() - cpu_before);
        walls.sort();
        let done = (batches * each) as f64;
        println!(
            "{name:<34}{:>10.0}{:>9.2}{:>9.2}{:>9.1}{:>9.1}{:>10}",
            done / wall.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / done,
            walls.iter().sum::<Duration>().as_secs_f64() * 1e6 / done,
            walls[walls.len() / 2].as_secs_f64() * 1e3,
            walls[walls.len() - 1].as_secs_f64() * 1e3,
            resident_mib()?
        );
        Ok(())
    }
}

/// Ids in no order, as most clients choose them; the factor is odd, so each is another one.
fn account(number: u64) -> u128 {
    u128::from((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number + 1)
}

/// A mixed counter: cheap enough not to disturb the figures.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Processor time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn resident_mib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(resident.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

fn settings() -> Result<Settings> {
    let mut settings = Settings {
        accounts: 1_000_000,
        transfers: 2_000_000,
        folder: None,
        only: String::new(),
        warm: false,
        options: StoreOptions::default(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let text = arguments.next().with_context(|| format!("{name} needs a value"))?;
        let number = || text.parse::<u64>().with_context(|| format!("{name} {text}"));
        match name.as_str() {
            "--accounts" => settings.accounts = number()?,
            "--transfers" => settings.transfers = number()?,
            "--cache-mib" => settings.options.cache_bytes = number()? << 20,
            "--warm" => settings.warm = number()? > 0,
            "--only" => settings.only = text,
            "--folder" => settings.folder = Some(text),
            _ => anyhow::bail!("unknown argument {name}"),
        }
    }
    settings.accounts = settings.accounts.next_multiple_of(ACCOUNTS_AT_ONCE);
    Ok(settings)
}
