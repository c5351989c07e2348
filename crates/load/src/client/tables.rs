//! Publishing lookup tables: a version is activated once the replicas have fetched it.

use crate::client::Channel;
use anyhow::{Context, Result, bail};
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::Code;

/// Pause between two attempts to activate a version.
const POLL: Duration = Duration::from_millis(100);

/// Publishes the version of `table` in `folder`, which all replicas must be able to read, and activates it
/// once every replica has it. Returns its number.
///
/// # Errors
/// The cluster refuses the version, a replica cannot load it, or `wait` passes first.
pub async fn publish_and_activate(
    client: &mut TableClient<Channel>,
    table: &str,
    folder: &Path,
    wait: Duration,
) -> Result<u64> {
    let location = folder.to_str().context("the folder's name is not UTF-8")?.to_string();
    let request = pb::PublishRequest { table: table.into(), location, ..Default::default() };
    let version = client.publish(request).await?.into_inner().version;
    let request = pb::ActivateRequest { table: table.into(), version, without_waiting: false };
    activate_when_ready(client, request, wait).await?;
    Ok(version)
}

/// Activates a version, retrying while replicas still fetch it or report failures that may pass.
///
/// # Errors
/// The cluster refuses for another reason, a replica cannot load the version, or `wait` passes first.
pub async fn activate_when_ready(
    client: &mut TableClient<Channel>,
    request: pb::ActivateRequest,
    wait: Duration,
) -> Result<pb::VersionResponse> {
    let deadline = Instant::now() + wait;
    loop {
        match client.activate(request.clone()).await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if status.code() != Code::FailedPrecondition || Instant::now() > deadline => {
                return Err(status.into());
            }
            Err(_) => {}
        }
        let pb::ActivateRequest { table, version, without_waiting } = &request;
        let request = pb::ListRequest { table: table.clone(), consistency: None };
        let tables = client.list(request).await?.into_inner().tables;
        let versions = tables.iter().flat_map(|info| &info.versions).filter(|info| info.version == *version);
        let mut failures = versions.flat_map(|info| &info.failed_members);
        if let Some(failure) = failures.find(|failure| !failure.transient)
            && !without_waiting
        {
            bail!("replica {} cannot load version {version}: {}", failure.name, failure.reason);
        }
        tokio::time::sleep(POLL).await;
    }
}
