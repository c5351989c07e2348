//! Tables: switched under load, streamed lookups, changes folded into the next base, memory settings.

use crate::harness::{PATIENCE, start, wait};
use crate::table::{KEYS, Resp, build_base, client, loaded, lookup, path, publish, quoin, shown, texts};
use anyhow::{Context, Result, ensure};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::v1::Local;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tonic::Code;

/// Readers over gRPC, and over Redis's protocol, on each replica.
const READERS: usize = 4;
/// Keys per lookup.
const BATCH: usize = 100;

/// How many lookups each of the two versions has answered, over all readers.
#[derive(Default)]
struct Seen {
    lookups: [AtomicU64; 3],
    stop: AtomicBool,
}

impl Seen {
    /// Counts an answer. All its values must be of the version that it names.
    fn answer(&self, version: u64, texts: &[String]) -> Result<()> {
        let letter = if version == 1 { "a" } else { "b" };
        ensure!(version == 1 || version == 2, "version {version} answered");
        let other = texts.iter().find(|text| !text.starts_with(letter));
        ensure!(other.is_none(), "{other:?} in an answer of version {version}");
        self.lookups[version as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn of(&self, version: usize) -> u64 {
        self.lookups[version].load(Ordering::Relaxed)
    }
}

fn batch(number: u64) -> Vec<u64> {
    (0..BATCH as u64).map(|at| (number * 37 + at * 7) % KEYS).collect()
}

/// One lookup over Redis's protocol. Returns the version and the values.
fn resp_lookup(resp: &mut Resp, keys: &[u64]) -> Result<(u64, Vec<String>)> {
    let blob: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let mut request = format!("*3\r\n$12\r\nTABLE.LOOKUP\r\n$1\r\nt\r\n${}\r\n", blob.len()).into_bytes();
    request.extend(blob);
    request.extend(b"\r\n");
    resp.0.write_all(&request)?;
    let (found, values) = (keys.len().div_ceil(8), keys.len() * 4);
    let expected =
        format!("*3\r\n:1\r\n${found}\r\n").len() + found + format!("\r\n${values}\r\n").len() + values + 2;
    let mut answer = vec![0; expected];
    resp.0.read_exact(&mut answer)?;
    let text = String::from_utf8_lossy(&answer[..8]).into_owned();
    let version = text.strip_prefix("*3\r\n:").and_then(|rest| rest[..1].parse().ok());
    let version = version.with_context(|| format!("an answer that begins {text:?}"))?;
    let values = &answer[expected - 2 - values..expected - 2];
    Ok((version, values.chunks(4).map(|four| String::from_utf8_lossy(four).into_owned()).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn switches_under_load_give_no_error_and_every_answer_is_of_one_version() -> Result<()> {
    let cluster = start(&[])?;
    let folder = tempfile::tempdir()?;
    let (a, b) = (build_base(folder.path(), 'a')?, build_base(folder.path(), 'b')?);
    let endpoints = cluster.endpoints();
    quoin(&["table", "publish", path(&a)?, "--activate", "--endpoints", &endpoints])?;
    let mut admin = client(&cluster, 0).await?;
    let second = publish(&mut admin, &b).await?;
    for replica in 0..3 {
        wait("the version to be loaded", || loaded(&cluster, replica, second)).await?;
        // After a linearizable lookup, a local one sees the first version at least.
        assert_eq!(shown(&cluster, replica, &[7]).await?, (1, vec!["a007".into()]));
    }

    let seen = Arc::new(Seen::default());
    let (mut grpc, mut resp) = (Vec::new(), Vec::new());
    for reader in 0..3 * READERS {
        let (mut client, resp_client) =
            (client(&cluster, reader % 3).await?, Resp::connect(&cluster, reader % 3)?);
        let (seen_grpc, seen_resp) = (Arc::clone(&seen), Arc::clone(&seen));
        grpc.push(tokio::spawn(async move {
            for number in 0.. {
                if seen_grpc.stop.load(Ordering::Relaxed) {
                    break;
                }
                let keys = pb::Keys { table: "t".into(), keys: batch(number), form: 0 };
                let consistency = Some(Local::default().into());
                let request = pb::LookupRequest { tables: vec![keys], consistency };
                let values = client.lookup(request).await?.into_inner().tables.remove(0);
                seen_grpc.answer(values.version, &texts(&values, BATCH))?;
            }
            anyhow::Ok(())
        }));
        resp.push(std::thread::spawn(move || {
            let mut resp = resp_client;
            for number in 0.. {
                if seen_resp.stop.load(Ordering::Relaxed) {
                    break;
                }
                let (version, texts) = resp_lookup(&mut resp, &batch(number))?;
                seen_resp.answer(version, &texts)?;
            }
            anyhow::Ok(())
        }));
    }

    // Forth and back, each time until many lookups were answered.
    for _ in 0..5 {
        let activate = pb::ActivateRequest { table: "t".into(), version: second, without_waiting: false };
        wait("the second version to be active", || {
            let (mut admin, activate) = (admin.clone(), activate.clone());
            async move { admin.activate(activate).await }
        })
        .await?;
        let target = seen.of(2) + 500;
        wait("lookups of the second version", || async { seen.of(2) >= target }).await?;
        admin.rollback(pb::RollbackRequest { table: "t".into() }).await?;
        let target = seen.of(1) + 500;
        wait("lookups of the first version", || async { seen.of(1) >= target }).await?;
    }
    seen.stop.store(true, Ordering::Relaxed);
    for reader in grpc {
        tokio::time::timeout(PATIENCE, reader).await???;
    }
    for reader in resp {
        tokio::task::spawn_blocking(move || reader.join())
            .await?
            .map_err(|_| anyhow::anyhow!("a reader panicked"))??;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lookups_are_streamed_and_changes_are_exported_and_folded_into_the_next_base() -> Result<()> {
    let cluster = start(&["--table-keys-max=100"])?;
    let folder = tempfile::tempdir()?;
    let a = build_base(folder.path(), 'a')?;
    let endpoints = cluster.endpoints();
    quoin(&["table", "publish", path(&a)?, "--activate", "--endpoints", &endpoints])?;

    // Answers come in the order of the requests; an invalid request ends its stream with the reason.
    let mut streamed = client(&cluster, 0).await?;
    let request = |keys: Vec<u64>| {
        let keys = pb::Keys { table: "t".into(), keys, form: 0 };
        pb::LookupRequest { tables: vec![keys], consistency: None }
    };
    let requests: Vec<_> = (0..50).map(|number| request(vec![number, number + 5000])).collect();
    let mut answers = streamed.lookup_stream(tokio_stream::iter(requests)).await?.into_inner();
    for number in 0..50 {
        let values = answers.message().await?.context("an answer")?.tables.remove(0);
        assert_eq!((values.version, texts(&values, 2)), (1, vec![format!("a{number:03}"), "-".into()]));
    }
    assert!(answers.message().await?.is_none());
    let requests = tokio_stream::iter([request(vec![1]), request(vec![1; 101]), request(vec![2])]);
    let mut answers = streamed.lookup_stream(requests).await?.into_inner();
    assert!(answers.message().await?.is_some());
    assert_eq!(answers.message().await.expect_err("too many keys").code(), Code::InvalidArgument);

    // Changes that are exported and merged into the next base no longer overlay its files once it is active.
    quoin(&["table", "set", "t", "7=new7", "5000=new!", "--endpoints", &endpoints])?;
    quoin(&["table", "del", "t", "8", "--endpoints", &endpoints])?;
    let (changes, next) = (folder.path().join("changes"), folder.path().join("next"));
    // The members' disks, which the note names, are recorded within seconds of the first start.
    let export = ["table", "export-changes", "t", "--output", path(&changes)?, "--endpoints", &endpoints];
    wait("an export", || async { quoin(&export) }).await?;
    // Written after the export: it stays an overlay.
    quoin(&["table", "set", "t", "9=late", "--endpoints", &endpoints])?;
    quoin(&["table", "merge", path(&a)?, path(&changes)?, "--output", path(&next)?])?;
    quoin(&["table", "publish", path(&next)?, "--activate", "--endpoints", &endpoints])?;
    let texts = ["new7", "new!", "-", "late", "a010"].map(String::from).to_vec();
    for replica in 0..3 {
        assert_eq!(shown(&cluster, replica, &[7, 5000, 8, 9, 10]).await?, (2, texts.clone()));
    }
    let changed = (2, vec!["new7".to_string(), "-".into(), "late".into()]);
    let mut again = client(&cluster, 1).await?;
    let mut stream = again.changes(pb::ChangesRequest { table: "t".into() }).await?.into_inner();
    let first = stream.message().await?.context("an answer")?;
    assert_eq!(first.over.context("over what")?.version, 2);
    assert_eq!((first.keys, first.deletes), (vec![9], vec![]));
    assert!(stream.message().await?.is_none());

    // Rolled back, they overlay the first version again. The patch alone folds them as well.
    quoin(&["table", "rollback", "t", "--endpoints", &endpoints])?;
    let values = lookup(&mut again, &[7, 8, 9]).await?;
    assert_eq!((values.version, crate::table::texts(&values, 3)), (1, changed.1));
    quoin(&["table", "publish", path(&changes)?, "--activate", "--endpoints", &endpoints])?;
    assert_eq!(shown(&cluster, 2, &[7, 5000, 8, 9, 10]).await?, (3, texts));
    let unknown = again.changes(pb::ChangesRequest { table: "unknown".into() }).await;
    assert_eq!(unknown.expect_err("no such table").code(), Code::NotFound);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_locked_in_memory_and_on_huge_pages_where_that_is_permitted() -> Result<()> {
    let cluster = start(&["--table-lock=true", "--table-huge-pages=true"])?;
    let folder = tempfile::tempdir()?;
    let a = build_base(folder.path(), 'a')?;
    let endpoints = cluster.client_address(0);
    match quoin(&["table", "publish", path(&a)?, "--activate", "--endpoints", &endpoints]) {
        Ok(_) => {}
        Err(error)
            if ["os error 1)", "os error 11)", "os error 12)"]
                .iter()
                .any(|code| error.to_string().contains(code)) =>
        {
            writeln!(std::io::stderr(), "skipped: the test may not lock memory here: {error}")?;
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    for replica in 0..3 {
        assert_eq!(shown(&cluster, replica, &[7, 5000]).await?, (1, vec!["a007".into(), "-".into()]));
        let pid = cluster.pid(replica).context("a running replica")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix(" kB"));
        // Two shards, each on a huge page of 2 MiB.
        assert!(locked.context("VmLck")?.trim().parse::<u64>()? >= 4096, "{status}");
    }
    Ok(())
}
