//! The client of the route face, and rules' keys as people write them.

use anyhow::{Context, Result};
use quoin_load::client::ANSWER_BYTES_MAX;
use quoin_load::client::Channel;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::route_client::RouteClient;

/// A client that accepts large answers.
pub(super) fn client(channel: Channel) -> RouteClient<Channel> {
    RouteClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
}

pub(super) fn parse_key(text: &str) -> Result<pb::RuleKey> {
    let (vni, ip) =
        text.split_once('/').with_context(|| format!("{text:?} is not VNI/IP, like 100/10.0.0.1"))?;
    let vni = vni.parse().with_context(|| format!("{vni:?} in {text:?} is not a VNI"))?;
    Ok(pb::RuleKey { vni, ip: ip.to_owned() })
}
