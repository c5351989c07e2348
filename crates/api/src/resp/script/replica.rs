//! One replica, as a node assembles it, in a temporary folder: the engine, lookup tables, and this adapter on
//! a port of its own.

use crate::Life;
use crate::budget::Budget;
use crate::grpc::table::Table;
use crate::testing::{self, MEMBER};
use quoin_core::system::{self, Alarm, AlarmKind};
use quoin_engine::{Engine, Limits, Running, Settings};
use quoin_library::{Keeper, Library, TableConfig};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_server::Table as _;
use quoin_table::{Codec, FileEntry, Manifest, Part, Plan, Schema, ShardWriter};
use quoin_testkit::wait_blocking;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tonic::Request;

pub(super) struct Replica {
    runtime: Runtime,
    engine: Engine,
    library: Arc<Library>,
    life: watch::Sender<bool>,
    address: SocketAddr,
    /// Until it is stopped.
    running: Option<(Running, Keeper)>,
    /// Tables that were published, for the names of their folders.
    published: usize,
    folder: TempDir,
}

/// Small limits, so that scripts can exceed them.
fn settings() -> Settings {
    Settings {
        limits: Limits { request_bytes_max: 200_000, response_bytes_max: 1000, ..Limits::default() },
        ..testing::settings()
    }
}

impl Replica {
    /// Starts a new cluster of one replica; returns once it serves.
    pub(super) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (folder, running) = testing::start(&runtime, settings());
        let entered = runtime.enter();
        let engine = running.engine();
        let library = Arc::new(Library::new(TableConfig {
            keys_max: 4,
            changes_bytes_max: 2100,
            sources: vec!["*".into()],
            ..TableConfig::default()
        }));
        let tables = folder.path().join("tables");
        let keeper =
            Keeper::start(engine.clone(), Arc::clone(&library), tables, runtime.handle().clone()).unwrap();
        let (life, ending) = watch::channel(false);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = crate::into_tokio(listener).unwrap();
        let failed = engine.metrics().tls_failed.clone();
        let listener = crate::accept::Listener::new(listener, crate::wrong_port::Port::Resp, None, failed);
        let budget = Budget::new(&engine);
        runtime.spawn(crate::resp::serve(
            engine.clone(),
            crate::auth::Gate::new(engine.clone(), Default::default(), None),
            Arc::clone(&library),
            budget,
            listener,
            Life(ending),
        ));
        drop(entered);
        Self {
            runtime,
            engine,
            library,
            life,
            address,
            running: Some((running, keeper)),
            published: 0,
            folder,
        }
    }

    /// Where it serves clients of Redis.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Moves the wall clock.
    pub(super) fn clock(&self, ms: i64) {
        let (running, _) = self.running.as_ref().expect("it was not stopped");
        running.shift_wall_clock(ms);
    }

    fn tables(&self) -> Table {
        Table::new(self.engine.clone(), Arc::clone(&self.library), Life(self.life.subscribe()))
    }

    /// Writes a table's files from `NAME KEY=VALUE ...` and publishes them; returns the version.
    pub(super) fn publish(&mut self, words: &str) -> u64 {
        let (name, rows) = words.split_once(' ').expect("a table and rows");
        let rows = rows.split(' ').map(|row| row.split_once('=').expect("a key and a value"));
        let rows: BTreeMap<u64, &[u8]> =
            rows.map(|(key, value)| (key.parse().unwrap(), value.as_bytes())).collect();
        self.published += 1;
        let folder = self.folder.path().join(format!("published-{}", self.published));
        write_table(&folder, name, &rows);
        let location = folder.to_str().unwrap().to_owned();
        let request = pb::PublishRequest { location, ..pb::PublishRequest::default() };
        let published = self.runtime.block_on(self.tables().publish(Request::new(request)));
        published.unwrap().into_inner().version
    }

    /// Switches a table to a version once that is ready.
    pub(super) fn activate(&self, table: &str, version: u64) {
        let request = pb::ActivateRequest { table: table.into(), version, ..pb::ActivateRequest::default() };
        wait_blocking("the table to be ready", || {
            self.runtime.block_on(self.tables().activate(Request::new(request.clone())))
        })
        .unwrap();
    }

    /// Raises or disarms the alarm that says that space is short.
    pub(super) fn space(&self, short: bool) {
        let alarm = Alarm { member: MEMBER, kind: AlarmKind::Nospace as i32 };
        let operation =
            if short { system::Operation::RaiseAlarm(alarm) } else { system::Operation::ClearAlarm(alarm) };
        self.runtime.block_on(self.engine.propose(operation.into_command())).unwrap();
        wait_blocking("the alarm to be known", || self.engine.no_space() == short).unwrap();
    }

    /// Stops the replica; its clients stay connected.
    pub(super) fn stop(&mut self) {
        if let Some((running, keeper)) = self.running.take() {
            keeper.stop();
            running.stop();
        }
    }

    /// Stops everything.
    pub(super) fn end(mut self) {
        self.life.send_replace(true);
        self.stop();
    }
}

/// A table of one file. Values of one width make a table of that width.
fn write_table(folder: &Path, name: &str, rows: &BTreeMap<u64, &[u8]>) {
    std::fs::create_dir_all(folder).unwrap();
    let widths: BTreeSet<usize> = rows.values().map(|value| value.len()).collect();
    let schema = match widths.first() {
        Some(width) if widths.len() == 1 => Schema::fixed(Codec::Raw, *width as u32),
        _ => Schema::variable(4),
    };
    let plan = Plan::new(rows.len() as u64, 1);
    let file = "values-00000-of-00001.qtb";
    let mut writer = ShardWriter::create(&folder.join(file), &schema, plan, 0).unwrap();
    for part in 0..plan.parts as usize {
        let keys: Vec<u64> = rows.keys().copied().filter(|key| plan.part_of(*key) == part).collect();
        let part = Part::build(&schema, &keys, |position| rows[&keys[position]]).unwrap();
        writer.append(&part).unwrap();
    }
    let files = vec![FileEntry::new(file.into(), writer.finish().unwrap())];
    Manifest::new(name, None, schema, files, Vec::new(), BTreeMap::new()).write(folder).unwrap();
}
