//! The clients of the kv face. They accept large answers: a read without `--limit` may have one.

use crate::connection::Connection;
use anyhow::Result;
use quoin_load::client::ANSWER_BYTES_MAX;
use quoin_load::client::Channel;
use quoin_proto::etcdserverpb::kv_client::KvClient as EtcdClient;
use quoin_proto::quoin::kv::v1::kv_client::KvClient as QuoinClient;

/// A client of etcd's API.
pub(super) async fn etcd(connection: &Connection) -> Result<EtcdClient<Channel>> {
    Ok(EtcdClient::new(connection.any().await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}

/// A client of `quoin.kv.v1`.
pub(super) async fn quoin(connection: &Connection) -> Result<QuoinClient<Channel>> {
    Ok(QuoinClient::new(connection.any().await?).max_decoding_message_size(ANSWER_BYTES_MAX))
}
