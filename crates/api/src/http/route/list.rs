//! Lists of rules: JSON a page at a time, or all of them as one CSV, in the form that `quoin route load` reads.
//!
//! **Invariant: Bounded.** A page of JSON ends at [`PAGE_BYTES_MAX`]. CSV is read a page at a time, at one revision, as
//! fast as the client takes it: one page waits.

use super::model::{RoutingRule, RuleList, RulePage, hex, signed, unsigned};
use crate::error::Error;
use crate::grpc::route::Route;
use crate::grpc::route::list::list_within;
use crate::grpc::route::translate::{PAGE, quoted};
use crate::http::extract::{self, Params};
use crate::http::problem::Problem;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::list_request::Of;

/// Bytes of rules after which a page ends.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// As [`PAGE_BYTES_MAX`], for a piece of CSV.
const PIECE_BYTES_MAX: usize = 256 << 10;
const COLUMNS: [&str; 10] = [
    "vni",
    "ip",
    "mac",
    "host_ip",
    "host_mac",
    "group",
    "revision",
    "user_data",
    "user_data_hex",
    "group_hex",
];

/// List the rules of a group, a network, a host or a hardware address
///
/// As JSON a page at a time. With Accept: text/csv all of them, at one revision, which the header Quoin-Revision
/// names: a file that `quoin route load` reads. Text that begins or ends with blanks, which CSV would lose, is in `user_data_hex`
/// and `group_hex`.
#[utoipa::path(get, path = "/v1/rules", operation_id = "list_rules", tag = "rules", params(RuleList),
    responses((status = 200, content((RulePage = "application/json"), (String = "text/csv"))),
        (status = "4XX", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(route): State<Route>,
    Params(list): Params<RuleList>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if wants_csv(&headers) {
        if list.limit == Some(0) {
            return Err(Problem::field("limit", "0 is no number of rules; leave it out for all"));
        }
        let rows = list.limit.map_or(usize::MAX, |limit| limit as usize);
        return csv(route, request(list, PAGE.max)?, rows).await;
    }
    let limit = extract::page_size(&PAGE, list.limit)?;
    let request = request(list, u32::try_from(limit).expect("page sizes are small"))?;
    let page = list_within(route.engine(), request, PAGE_BYTES_MAX).await.map_err(wrong)?;
    let next = page.next.map(|key| format!("{}/{}", key.vni, key.ip));
    let rules = page.rules.into_iter().map(RoutingRule::of).collect();
    let revision = page.header.map_or(0, |header| unsigned(header.revision));
    Ok(Json(RulePage { revision, rules, next }).into_response())
}

fn request(list: RuleList, limit: u32) -> Result<pb::ListRequest, Problem> {
    let wanted = [
        list.group.map(Of::Group),
        list.vni.map(Of::Vni),
        list.host_ip.map(Of::HostIp),
        list.mac.map(Of::Mac),
    ];
    let mut wanted = wanted.into_iter().flatten();
    let (Some(of), None) = (wanted.next(), wanted.next()) else {
        return Err(Problem::field("group", "give one of group, vni, host_ip and mac"));
    };
    Ok(pb::ListRequest {
        of: Some(of),
        revision: list.at_revision.map_or(Ok(0), |revision| signed(revision, "at_revision"))?,
        limit,
        after: list.after.as_deref().map(after).transpose()?,
        consistency: extract::asked_consistency(list.local, list.lag_entries_max, list.lag_ms_max)?,
    })
}

/// An error of a request for a list.
fn wrong(error: Error) -> Problem {
    Problem::of_request(error).renamed("revision", "at_revision")
}

fn after(text: &str) -> Result<pb::RuleKey, Problem> {
    let key = text.split_once('/').and_then(|(vni, ip)| Some((vni.parse().ok()?, ip)));
    let (vni, ip) = key.ok_or_else(|| {
        let shown = quoted(text);
        Problem::field("after", format!("{shown} is not the next of a page, as 100/10.0.0.2"))
    })?;
    Ok(pb::RuleKey { vni, ip: ip.to_owned() })
}

/// Whether the client prefers CSV to JSON (RFC 9110, 12.5.1).
fn wants_csv(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(','));
    let weighed = ranges.filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next()?.to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
        let csv = match kind.as_str() {
            "text/csv" | "text/*" => true,
            "application/json" | "application/*" | "*/*" => false,
            _ => return None,
        };
        (weight > 0.0).then_some((csv, weight))
    });
    // Of those that weigh the same, the first.
    let best = weighed.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.is_some_and(|(csv, _)| csv)
}

/// A list that is being sent.
struct Sending {
    route: Route,
    request: pb::ListRequest,
    /// How many rows may still be sent.
    rows: usize,
    page: Option<pb::ListResponse>,
}

async fn csv(route: Route, mut request: pb::ListRequest, rows: usize) -> Result<Response, Problem> {
    let page = list_within(route.engine(), request.clone(), PIECE_BYTES_MAX).await;
    let page = page.map_err(wrong)?;
    let revision = page.header.map_or(0, |header| header.revision);
    request.revision = revision;
    let sending = Sending { route, request, rows, page: Some(page) };
    let head = write_rows([COLUMNS.map(str::to_owned)]);
    let pieces = stream::unfold((Some(head), Some(sending)), |(head, sending)| async move {
        if let Some(head) = head {
            return Some((Ok(head), (None, sending)));
        }
        match sending?.piece().await {
            Ok((piece, rest)) => Some((Ok(piece), (None, rest))),
            // The connection is cut, so that the client does not take a part for the whole.
            Err(error) => Some((Err(error), (None, None))),
        }
    });
    let kind = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert(HeaderName::from_static("quoin-revision"), HeaderValue::from(revision));
    Ok(response)
}

impl Sending {
    /// The next piece, and what is left to send.
    async fn piece(mut self) -> Result<(Vec<u8>, Option<Self>), Error> {
        let page = match self.page.take() {
            Some(page) => page,
            None => list_within(self.route.engine(), self.request.clone(), PIECE_BYTES_MAX).await?,
        };
        self.request.after = page.next;
        let rows = page.rules.into_iter().take(self.rows).map(RoutingRule::of);
        let mut sent = 0;
        let piece = write_rows(rows.inspect(|_| sent += 1).map(row));
        self.rows -= sent;
        let more = page.more && self.rows > 0;
        Ok((piece, more.then_some(self)))
    }
}

/// A rule in the order of [`COLUMNS`].
fn row(rule: RoutingRule) -> [String; 10] {
    let RoutingRule { vni, ip, target, revision } = rule;
    let (group, group_hex) = kept(target.group);
    let (user_data, mut user_data_hex) = kept(target.user_data);
    if user_data_hex.is_empty() {
        user_data_hex = target.user_data_hex;
    }
    let (vni, revision) = (vni.to_string(), revision.to_string());
    let hosts = (target.mac, target.host_ip, target.host_mac);
    [vni, ip, hosts.0, hosts.1, hosts.2, group, revision, user_data, user_data_hex, group_hex]
}

/// A text, or the same in hexadecimal if it has blanks at its ends: readers of CSV drop them.
fn kept(text: String) -> (String, String) {
    if text.trim() == text { (text, String::new()) } else { (String::new(), hex(text.as_bytes())) }
}

fn write_rows(rows: impl IntoIterator<Item = [String; 10]>) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row).expect("a Vec takes everything, and rows are equally long");
    }
    writer.into_inner().expect("a Vec takes everything")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_sent_to_those_who_prefer_it() {
        for (accept, csv) in [
            ("text/csv", true),
            ("Text/CSV; charset=utf-8", true),
            ("application/json;q=0.5, text/csv", true),
            ("text/csv, application/json", true),
            ("application/json, text/csv", false),
            ("text/csv;q=0.1, application/json", false),
            ("text/csv;q=0", false),
            ("text/html, */*", false),
        ] {
            let value = HeaderValue::from_static(accept);
            assert_eq!(wants_csv(&HeaderMap::from_iter([(header::ACCEPT, value)])), csv, "{accept}");
        }
        assert!(!wants_csv(&HeaderMap::new()));
    }
}
