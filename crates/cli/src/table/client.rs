//! The client of the table face, and the outcome of a change.

use crate::connection::Connection;
use anyhow::Result;
use quoin_load::client::ANSWER_BYTES_MAX;
use quoin_load::client::Channel;
use quoin_proto::quoin::table::v1 as pb;
use quoin_proto::quoin::table::v1::table_client::TableClient;
use serde_json::json;

pub(super) async fn client(connection: &Connection) -> Result<TableClient<Channel>> {
    Ok(TableClient::new(connection.any().await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// Prints the version that a command changed; `what` says how.
pub(super) fn say(connection: &Connection, what: &str, response: &pb::VersionResponse) -> Result<()> {
    let pb::VersionResponse { version, revision, table } = response;
    connection.say(
        &json!({ "table": table, "version": version, "revision": revision }),
        &format!("{what} {version} at revision {revision}"),
    )?;
    Ok(())
}
