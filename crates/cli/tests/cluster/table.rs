//! Tables on three replicas: published, switched, rolled back and changed while replicas are killed.

use crate::harness::{Clients, Cluster, PATIENCE, PROGRAM, start, wait};
use anyhow::{Context, Result, ensure};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use quoin_proto::quoin::v1::Local;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use tonic::Code;
use tonic::transport::Channel;

pub(crate) const KEYS: u64 = 1000;

/// Runs the program. Returns what it printed, or fails with it.
pub(crate) fn quoin(arguments: &[&str]) -> Result<String> {
    let output = Command::new(PROGRAM).args(arguments).output()?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "quoin {}: {said}", arguments.join(" "));
    Ok(said)
}

/// Builds a base of [`KEYS`] keys. Each value has four bytes: the `letter`, then the key.
pub(crate) fn build_base(folder: &Path, letter: char) -> Result<PathBuf> {
    let rows: String = (0..KEYS).map(|key| format!("{key},{letter}{key:03}\n")).collect();
    let (input, output) = (folder.join(format!("{letter}.csv")), folder.join(format!("table-{letter}")));
    std::fs::write(&input, format!("key,value\n{rows}"))?;
    quoin(&["table", "build", "t", "--shards", "2", "--input", path(&input)?, "--output", path(&output)?])?;
    Ok(output)
}

pub(crate) fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

pub(crate) async fn client(cluster: &Cluster, replica: usize) -> Result<TableClient<Channel>> {
    Ok(TableClient::new(cluster.channel(replica).await?))
}

pub(crate) async fn lookup(
    client: &mut TableClient<Channel>,
    keys: &[u64],
) -> Result<pb::Values, tonic::Status> {
    let keys = pb::Keys { table: "t".into(), keys: keys.to_vec(), form: 0 };
    let response = client.lookup(pb::LookupRequest { tables: vec![keys], consistency: None }).await?;
    Ok(response.into_inner().tables.remove(0))
}

/// The four bytes of each key, as text; `-` where it is absent.
pub(crate) fn texts(values: &pb::Values, count: usize) -> Vec<String> {
    let text = |at: usize| String::from_utf8_lossy(&values.values[at * 4..at * 4 + 4]).into_owned();
    let found = |at: usize| values.found[at / 8] >> (at % 8) & 1 == 1;
    (0..count).map(|at| if found(at) { text(at) } else { "-".into() }).collect()
}

pub(crate) async fn shown(cluster: &Cluster, replica: usize, keys: &[u64]) -> Result<(u64, Vec<String>)> {
    let values = lookup(&mut client(cluster, replica).await?, keys).await?;
    Ok((values.version, texts(&values, keys.len())))
}

/// What a replica itself knows, whoever leads.
pub(crate) fn local_list() -> pb::ListRequest {
    pb::ListRequest { table: "t".into(), consistency: Some(Local::default().into()) }
}

pub(crate) async fn loaded(cluster: &Cluster, replica: usize, version: u64) -> bool {
    let Ok(mut client) = client(cluster, replica).await else { return false };
    let Ok(list) = client.list(local_list()).await else { return false };
    let mut versions = list.into_inner().tables.into_iter().flat_map(|table| table.versions);
    versions.any(|info| info.version == version && info.loaded_here)
}

/// A connection that speaks Redis's protocol.
pub(crate) struct Resp(pub(crate) TcpStream);

impl Resp {
    pub(crate) fn connect(cluster: &Cluster, replica: usize) -> Result<Self> {
        let stream = TcpStream::connect(cluster.resp_address(replica))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Sends a command and checks the answer byte for byte.
    pub(crate) fn says(&mut self, words: &[&[u8]], expected: &[u8]) -> Result<()> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).into_bytes());
            request.extend([word, &b"\r\n"[..]].concat());
        }
        self.0.write_all(&request)?;
        let mut answer = vec![0; expected.len()];
        self.0.read_exact(&mut answer)?;
        assert_eq!(answer.escape_ascii().to_string(), expected.escape_ascii().to_string());
        Ok(())
    }
}

pub(crate) async fn publish(client: &mut TableClient<Channel>, folder: &Path) -> Result<u64> {
    let request = pb::PublishRequest { location: path(folder)?.into(), ..Default::default() };
    Ok(client.publish(request).await?.into_inner().version)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_published_switched_rolled_back_and_changed_while_replicas_come_and_go() -> Result<()> {
    let mut cluster = start(&[])?;
    let folder = tempfile::tempdir()?;
    let (a, b) = (build_base(folder.path(), 'a')?, build_base(folder.path(), 'b')?);
    let endpoints = cluster.endpoints();

    // The command line publishes, waits for all replicas, and switches them together.
    quoin(&["table", "publish", path(&a)?, "--activate", "--endpoints", &endpoints])?;
    for replica in 0..3 {
        assert_eq!(
            shown(&cluster, replica, &[7, 5000, 999]).await?,
            (1, vec!["a007".into(), "-".into(), "a999".into()])
        );
    }

    // While a replica is down, the next version is not activated: that replica could not answer.
    let away = (cluster.leader()? + 1) % 3;
    cluster.kill(away)?;
    let here = (away + 1) % 3;
    let mut admin = client(&cluster, here).await?;
    let second = publish(&mut admin, &b).await?;
    for replica in (0..3).filter(|replica| *replica != away) {
        wait("the version to be loaded", || loaded(&cluster, replica, second)).await?;
    }
    let activate = || pb::ActivateRequest { table: "t".into(), version: second, without_waiting: false };
    let refused = admin.activate(activate()).await.expect_err("a replica is away");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let named =
        format!("missing: r{away} (still fetching, or away); wait for them, or activate --without-waiting");
    assert!(refused.message().contains(&named), "{refused}");
    assert_eq!(shown(&cluster, here, &[7]).await?, (1, vec!["a007".into()]));
    let page = cluster.page(here, "/metrics")?.body;
    for line in [
        "quoin_table_active_version{table=\"t\"} 1",
        "quoin_table_not_loaded{table=\"t\"} 0",
        "# TYPE quoin_table_lookup_seconds histogram",
    ] {
        ensure!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    let of = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(&format!("{name}{{table=\"t\"}} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).context(name.to_owned())
    };
    ensure!(of("quoin_table_lookups_total")? >= 1 && of("quoin_table_bytes")? > 4 * KEYS, "{page}");
    ensure!(of("quoin_table_keys_total")? > of("quoin_table_misses_total")?, "{page}");
    ensure!(of("quoin_table_versions_ready")? <= of("quoin_table_versions")?, "{page}");

    // It comes back and fetches, and the switch goes through. Every answer is of one version.
    cluster.restart(away)?;
    wait("the version to be loaded", || loaded(&cluster, away, second)).await?;
    let reader = tokio::spawn({
        let mut client = client(&cluster, here).await?;
        async move {
            let keys: Vec<u64> = (0..KEYS).collect();
            let mut seen = Vec::new();
            while seen.last() != Some(&second) {
                let values = lookup(&mut client, &keys).await?;
                let letter = if values.version == 1 { "a" } else { "b" };
                let texts = texts(&values, keys.len());
                ensure!(texts.iter().all(|text| text.starts_with(letter)), "an answer of two versions");
                seen.push(values.version);
            }
            Ok(seen)
        }
    });
    wait("the second version to be active", || {
        let mut admin = admin.clone();
        async move { admin.activate(activate()).await }
    })
    .await?;
    let seen = tokio::time::timeout(PATIENCE, reader).await???;
    assert!(seen.is_sorted(), "versions go forward: {seen:?}");

    // A linearizable lookup on any replica sees the changes.
    let write = pb::WriteRequest {
        table: "t".into(),
        keys: vec![7, 5000],
        values: vec!["new7".into(), "new!".into()],
        deletes: vec![8],
    };
    admin.write(write).await?;
    let changed = (second, vec!["new7".to_string(), "new!".into(), "-".into(), "b009".into()]);
    for replica in 0..3 {
        assert_eq!(shown(&cluster, replica, &[7, 5000, 8, 9]).await?, changed);
    }

    // The same over Redis's protocol.
    let mut resp = Resp::connect(&cluster, here)?;
    resp.says(&[b"TABLE.MGET", b"t", b"7", b"8", b"9"], b"*3\r\n$4\r\nnew7\r\n$-1\r\n$4\r\nb009\r\n")?;
    let keys = [9u64.to_le_bytes(), 8u64.to_le_bytes(), 7u64.to_le_bytes()].concat();
    resp.says(&[b"TABLE.LOOKUP", b"t", &keys], b"*3\r\n:2\r\n$1\r\n\x05\r\n$12\r\nb009\0\0\0\0new7\r\n")?;
    resp.says(&[b"table.set", b"t", b"6", b"resp"], b"+OK\r\n")?;
    resp.says(&[b"TABLE.MGET", b"t", b"6"], b"*1\r\n$4\r\nresp\r\n")?;
    resp.says(&[b"TABLE.DEL", b"t", b"6"], b"+OK\r\n")?;
    resp.says(&[b"TABLE.MGET", b"t", b"6"], b"*1\r\n$-1\r\n")?;
    resp.says(&[b"TABLE.LIST"], b"*1\r\n$1\r\nt\r\n")?;
    resp.says(
        &[b"TABLE.LOOKUP", b"t", b"1234567"],
        b"-ERR the keys have 7 bytes, which is not a multiple of 8\r\n",
    )?;
    resp.says(&[b"PING"], b"+PONG\r\n")?;

    // After all replicas are killed: the same version, the same changes, and nothing is fetched again. A
    // restarted replica once removed files that its flushed state did not know yet, before it had replayed
    // its log, and then needed the source.
    std::fs::remove_dir_all(&a)?;
    std::fs::remove_dir_all(&b)?;
    cluster.kill_all()?;
    cluster.start_all()?;
    for replica in 0..3 {
        wait("the version to be loaded", || loaded(&cluster, replica, second)).await?;
        assert_eq!(shown(&cluster, replica, &[7, 5000, 8, 9]).await?, changed);
    }

    // Back to the first version in one step, on every replica.
    quoin(&["table", "rollback", "t", "--endpoints", &endpoints])?;
    for replica in 0..3 {
        assert_eq!(shown(&cluster, replica, &[9]).await?, (1, vec!["a009".into()]));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_wrong_bases_and_bad_requests_are_refused_and_the_running_version_goes_on() -> Result<()>
{
    let cluster = start(&["--table-keys-max=100"])?;
    let folder = tempfile::tempdir()?;
    let (a, b) = (build_base(folder.path(), 'a')?, build_base(folder.path(), 'b')?);
    let endpoints = cluster.client_address(0);
    quoin(&["table", "publish", path(&a)?, "--activate", "--endpoints", &endpoints])?;

    // Another shard count or another width is refused at publication.
    for (what, extra) in
        [("has 2 shards", ["--shards", "3"]), ("values of any width", ["--variable", "--shards=2"])]
    {
        let (input, other) =
            (folder.path().join("b.csv"), folder.path().join(extra[0].trim_start_matches('-')));
        let mut build = vec!["table", "build", "t", "--input", path(&input)?, "--output", path(&other)?];
        build.extend(extra);
        quoin(&build)?;
        let refused = quoin(&["table", "publish", path(&other)?, "--endpoints", &endpoints]);
        let refused = refused.expect_err("another shape").to_string();
        assert!(refused.contains(what) && refused.contains("build it alike"), "{refused}");
    }

    // A flipped bit: every replica names the file, the block and both checksums, and the version is never
    // activated.
    let file = std::fs::read_dir(&b)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "qtb"));
    let file = file.context("a shard file")?;
    let mut bytes = std::fs::read(&file)?;
    bytes[5000] ^= 1;
    std::fs::write(&file, bytes)?;
    let refused = quoin(&["table", "publish", path(&b)?, "--activate", "--endpoints", &endpoints]);
    let refused = refused.expect_err("a damaged file").to_string();
    assert!(refused.contains("block 0 has checksum") && refused.contains(".qtb"), "{refused}");
    let refused = quoin(&["table", "verify", path(&b)?]).expect_err("a damaged file").to_string();
    assert!(refused.contains("block 0 has checksum"), "{refused}");

    let listed = quoin(&["table", "versions", "t", "--endpoints", &endpoints])?;
    assert!(
        listed.contains("t 2: r0 does not have it:") && listed.contains("block 0 has checksum"),
        "{listed}"
    );

    // Put right and published again, it is the same version, which replicas fetch at once.
    let sound = {
        let mut bytes = std::fs::read(&file)?;
        bytes[5000] ^= 1;
        bytes
    };
    std::fs::write(&file, sound)?;
    let said = quoin(&["table", "publish", path(&b)?, "--activate", "--endpoints", &endpoints])?;
    assert!(said.contains("active: version 2 "), "{said}");
    quoin(&["table", "rollback", "t", "--endpoints", &endpoints])?;

    // A truncated file: the same.
    let cut = build_base(folder.path(), 'd')?;
    let file = std::fs::read_dir(&cut)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "qtb"));
    let file = std::fs::File::options().write(true).open(file.context("a shard file")?)?;
    let length = file.metadata()?.len();
    file.set_len(length - 1000)?;
    let refused = quoin(&["table", "publish", path(&cut)?, "--activate", "--endpoints", &endpoints]);
    let refused = refused.expect_err("a truncated file").to_string();
    let lengths = format!("{} bytes, expected {length}; block", length - 1000);
    assert!(refused.contains(&lengths) && refused.contains("has checksum"), "{refused}");
    assert_eq!(shown(&cluster, 2, &[7]).await?, (1, vec!["a007".into()]));

    // A patch over a base that was never published.
    let (base, patch) = (build_base(folder.path(), 'c')?, folder.path().join("patch"));
    std::fs::write(folder.path().join("patch.csv"), "key,value\n1,x001\n")?;
    let input = folder.path().join("patch.csv");
    quoin(&[
        "table",
        "build",
        "t",
        "--over",
        path(&base)?,
        "--input",
        path(&input)?,
        "--output",
        path(&patch)?,
    ])?;
    let mut admin = client(&cluster, 0).await?;
    let location = path(&patch)?.to_string();
    let refused =
        admin.publish(pb::PublishRequest { location, ..Default::default() }).await.expect_err("no base");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("which is no version of table"), "{refused}");

    // Invalid lookups and writes.
    let code = |result: Result<pb::Values, tonic::Status>| result.map_err(|status| status.code()).map(|_| ());
    assert_eq!(code(lookup(&mut admin, &[1; 101]).await), Err(Code::InvalidArgument));
    let unknown = pb::Keys { table: "unknown".into(), keys: vec![1], form: 0 };
    let request = pb::LookupRequest { tables: vec![unknown], consistency: None };
    assert_eq!(admin.lookup(request).await.map_err(|status| status.code()).map(|_| ()), Err(Code::NotFound));
    let wide = pb::WriteRequest {
        table: "t".into(),
        keys: vec![1],
        values: vec!["five!".into()],
        deletes: Vec::new(),
    };
    let refused = admin.write(wide).await.expect_err("another width");
    assert!(refused.message().contains("the value of key 1 has 5 bytes"), "{refused}");
    let gone =
        admin.publish(pb::PublishRequest { location: "ftp://host/t".into(), ..Default::default() }).await;
    assert!(gone.expect_err("no folder").message().contains("file, http, https and s3 are"));
    assert_eq!(shown(&cluster, 1, &[7]).await?, (1, vec!["a007".into()]));
    Ok(())
}
