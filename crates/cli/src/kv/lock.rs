//! `quoin kv lock`: a lock held while a command runs.

use crate::connection::Connection;
use anyhow::{Context, Result, ensure};
use clap::Args;
use quoin_proto::etcdserverpb as etcd;
use quoin_proto::etcdserverpb::kv_client::KvClient;
use quoin_proto::etcdserverpb::lease_client::LeaseClient;
use quoin_proto::v3lockpb::lock_client::LockClient;
use quoin_proto::v3lockpb::{LockRequest, UnlockRequest};
use std::process::ExitCode;
use std::time::Duration;
use tokio::process::Command;
use tokio_stream::wrappers::ReceiverStream;

/// A lock and the command to run under it.
#[derive(Args)]
pub(crate) struct Lock {
    /// Name of the lock
    name: String,
    /// Seconds until the lock is free if this process dies
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    ttl: i64,
    /// Command to run
    #[arg(last = true, required = true)]
    command: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// Waits for the lock, keeps its lease alive while the command runs, and releases it. Returns the command's
/// exit code.
pub(super) async fn lock(lock: Lock) -> Result<ExitCode> {
    let Lock { name, ttl, command, connection } = lock;
    let channel = connection.unbounded().any().await?;
    let mut leases = LeaseClient::new(channel.clone());
    let lease = leases.lease_grant(etcd::LeaseGrantRequest { ttl, id: 0 }).await?.into_inner();
    let mut locks = LockClient::new(channel.clone());
    let held = locks.lock(LockRequest { name: name.clone().into(), lease: lease.id }).await?.into_inner();
    let owned = etcd::RangeRequest { key: held.key.clone(), ..Default::default() };
    let owned = KvClient::new(channel).range(owned).await?.into_inner();
    // The create revision grows with each owner: a resource that remembers the largest can refuse an outdated
    // owner.
    let token = owned.kvs.first().context("the lock was lost before the command began")?.create_revision;
    let mut child = Command::new(&command[0])
        .args(&command[1..])
        .env("QUOIN_FENCING_TOKEN", token.to_string())
        .spawn()
        .with_context(|| format!("starting {:?}", command[0]))?;
    let third = Duration::from_secs_f64(lease.ttl as f64 / 3.0);
    let (requests, outgoing) = tokio::sync::mpsc::channel(1);
    let mut kept = leases.lease_keep_alive(ReceiverStream::new(outgoing)).await?.into_inner();
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            () = tokio::time::sleep(third) => requests.send(etcd::LeaseKeepAliveRequest { id: lease.id }).await?,
            reply = kept.message() => {
                let ttl = reply?.map_or(0, |reply| reply.ttl);
                ensure!(ttl > 0, "the lock {name:?} was lost while the command ran: its lease expired");
            }
        }
    };
    locks.unlock(UnlockRequest { key: held.key }).await?;
    leases.lease_revoke(etcd::LeaseRevokeRequest { id: lease.id }).await?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}
