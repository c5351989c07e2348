//! A replica for tests: the engine of the only member of a cluster, in a temporary folder.

use quoin_consensus::log::RealDisk;
use quoin_core::system::Member;
use quoin_engine::{
    Consistency, Engine, Founding, LogConfig, Opened, Owner, RaftConfig, Running, Settings, StoreConfig,
};
use quoin_testkit::wait_blocking;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The only member.
pub(crate) const MEMBER: u64 = 1;

/// Short ticks, small files, and no room kept free on the disk.
pub(crate) fn settings() -> Settings {
    Settings {
        name: "alone".into(),
        raft: RaftConfig { tick_ms: 5, ..RaftConfig::default() },
        log: LogConfig { segment_bytes: 1 << 20, ..LogConfig::default() },
        store: StoreConfig { reserve_bytes: 0, ..StoreConfig::default() },
        ..Settings::default()
    }
}

/// Compares a part of a page, between the lines `<!-- NAME -->` and `<!-- end of NAME -->`, with what it must be; writes it
/// instead if `UPDATE_GOLDEN` is set.
pub(crate) fn check_page(page: &str, name: &str, wanted: &str) {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&file).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let from = text.find(&begin).unwrap_or_else(|| panic!("{page} lacks the line {begin:?}")) + begin.len();
    let to = text.find(&end).unwrap_or_else(|| panic!("{page} lacks the line {end:?}"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, [&text[..from], wanted, &text[to..]].concat()).unwrap();
    } else {
        assert!(
            text[from..to] == *wanted,
            "{page} is not what the tables say: run the test with UPDATE_GOLDEN=1"
        );
    }
}

/// Founds a cluster of one replica on `runtime`; returns once it serves.
pub(crate) fn start(runtime: &Runtime, settings: Settings) -> (TempDir, Running) {
    let _entered = runtime.enter();
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(&folder.path().join("log")).unwrap());
    let member = Member { id: MEMBER, name: "alone".into(), ..Member::default() };
    let founding = Founding::of(vec![member]);
    let owner = Owner { cluster: 1, id: MEMBER, disk: 1, ..Owner::default() };
    let opened = Opened::open(owner, folder.path(), disk, settings, Some(&founding)).unwrap();
    let running = opened.start(TcpListener::bind("127.0.0.1:0").unwrap(), BTreeMap::new()).unwrap();
    let engine = running.engine();
    let serves = || runtime.block_on(engine.read(Consistency::Linearizable));
    wait_blocking("the replica to lead", serves).unwrap();
    (folder, running)
}

/// Runs `test` against a replica, on a runtime of one thread, whose tasks run in the order in which they were
/// woken.
pub(crate) fn alone<T: Future>(test: impl FnOnce(Engine) -> T) -> T::Output {
    alone_with(settings(), test)
}

/// As [`alone`], with other settings.
pub(crate) fn alone_with<T: Future>(settings: Settings, test: impl FnOnce(Engine) -> T) -> T::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_folder, running) = start(&runtime, settings);
    let outcome = runtime.block_on(test(running.engine()));
    running.stop();
    outcome
}
