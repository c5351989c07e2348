//! Lists of a group's or a network's rules, a page at a time.

use super::translate::{self, PAGE};
use crate::commands::{long_read, pinned};
use crate::consistency;
use crate::error::Error;
use crate::grpc::kv::header;
use quoin_core::route::{self, RuleKey, Scope};
use quoin_core::{Revision, StoreError};
use quoin_engine::Engine;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::list_request::Of;

/// Answers one request. The newest rules of a group are in memory; all others are read from the store.
///
/// # Errors
/// An invalid request or an unavailable revision; otherwise as every read.
pub(super) async fn list(engine: &Engine, request: pb::ListRequest) -> Result<pb::ListResponse, Error> {
    list_within(engine, request, engine.limits().response_bytes_max).await
}

/// As [`list`], for a page that ends at about `bytes_max` bytes.
///
/// # Errors
/// As [`list`].
pub(crate) async fn list_within(
    engine: &Engine,
    request: pb::ListRequest,
    bytes_max: usize,
) -> Result<pb::ListResponse, Error> {
    let (scope, limit) = (scope(&request)?, PAGE.of_field(request.limit)?);
    let after = request.after.as_ref().map(after).transpose()?;
    let revision = translate::revision("revision", request.revision)?;
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let at = if revision == 0 { view.progress().revision } else { Revision(revision) };
    let term = view.progress().term.0;
    let response = |(rules, more)| pb::ListResponse { header: Some(header(engine, at, term)), rules, more };
    if let (Scope::Group(group), true) = (&scope, at == view.progress().revision) {
        let table = view.memory().routes.look();
        // The table may be newer than the state that the header names.
        if table.revision() <= at {
            let members = table.group(group, after, limit + 1);
            drop(table);
            let rules = members.rules().map(|rule| rule.map(|rule| translate::shown(&rule)));
            return Ok(response(page(rules, limit, bytes_max)?));
        }
    }
    let listed = long_read(move || {
        let (_pin, sequence) = match pinned(&view, at)? {
            Ok(pinned) => pinned,
            Err(unavailable) => return Ok(Err(unavailable)),
        };
        let rules = route::rules(view.view().at(sequence), &scope, after);
        page(rules.map(|rule| rule.map(|rule| translate::shown(&rule.as_ref()))), limit, bytes_max).map(Ok)
    });
    Ok(response(listed.await??))
}

fn scope(request: &pb::ListRequest) -> Result<Scope, Error> {
    let (groups, vnis) = match &request.of {
        Some(Of::Group(group)) => (vec![group.clone()], Vec::new()),
        Some(Of::Vni(vni)) => (Vec::new(), vec![*vni]),
        None => return Err(Error::invalid("nothing to list: give a group or a vni")),
    };
    let scopes = translate::scopes(&pb::WatchRequest { groups, vnis, ..pb::WatchRequest::default() })?;
    Ok(scopes.into_iter().next().expect("one was given"))
}

fn after(after: &pb::RuleKey) -> Result<RuleKey, Error> {
    translate::rule_key(after.vni, &after.ip)
        .map_err(|problem| Error::invalid(format_args!("after.{problem}")))
}

/// Up to `limit` rules, fewer if they exceed `bytes_max` bytes, and whether there are more.
fn page(
    rules: impl Iterator<Item = Result<pb::Rule, StoreError>>,
    limit: usize,
    bytes_max: usize,
) -> Result<(Vec<pb::Rule>, bool), StoreError> {
    let mut page = Vec::new();
    let mut bytes = 0;
    for rule in rules {
        let rule = rule?;
        if page.len() == limit || bytes > bytes_max {
            return Ok((page, true));
        }
        bytes += rule.user_data.len() + rule.group.len() + 128;
        page.push(rule);
    }
    Ok((page, false))
}
