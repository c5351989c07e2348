//! Lists of rules, a page at a time, and the revisions of groups.
//!
//! **Invariant: Bounded.** A page is bounded in rules and bytes, and in rules that are examined to find some by
//! what they hold, for which there is no index. Only [`SCANS_MAX`] such searches run at once.

use super::text::parse_mac;
use super::translate::{self, PAGE, signed};
use crate::commands::{long_read, pinned};
use crate::consistency;
use crate::error::Error;
use crate::grpc::kv::{header, header_at};
use bytes::Bytes;
use quoin_core::route::{self, Mac, Rule, RuleKey, RuleRef, Scope};
use quoin_core::{Revision, StoreError, View};
use quoin_engine::Engine;
use quoin_proto::quoin::route::v1 as pb;
use quoin_proto::quoin::route::v1::list_request::Of;
use std::net::IpAddr;
use tokio::sync::Semaphore;

/// Maximum rules that are examined for a page: about 50 ms of a processor.
const EXAMINED_MAX: usize = 100_000;
/// Maximum searches through all rules at once; others wait.
const SCANS_MAX: usize = 4;
static SCANS: Semaphore = Semaphore::const_new(SCANS_MAX);
/// Maximum groups in a request for their revisions.
const GROUPS_MAX: usize = 10_000;

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
    let (wanted, limit) = (wanted(&request)?, PAGE.of_field(request.limit)?);
    let after = request.after.as_ref().map(after).transpose()?;
    let revision = translate::revision("revision", request.revision)?;
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let at = if revision == 0 { view.progress().revision } else { Revision(revision) };
    let term = view.progress().term.0;
    let header = header(engine, at, term);
    let page = Page::new(limit, bytes_max, EXAMINED_MAX);
    if let (Wanted::Of(Scope::Group(group)), true) = (&wanted, at == view.progress().revision) {
        let table = view.memory().routes.look();
        // The table may be newer than the state that the header names.
        if table.revision() <= at {
            let members = table.group(group, after, limit + 1);
            drop(table);
            let group_revision = group_revision(view.view(), group, at)?;
            let page = page.fill(members.rules(), |rule| Some(translate::shown(rule)))?;
            return Ok(page.response(header, group_revision));
        }
    }
    // A network's rules stand together. All else reads all rules.
    let place = match &wanted {
        Wanted::Of(Scope::Vni(_)) => None,
        _ => Some(SCANS.acquire().await.expect("nobody closes the semaphore")),
    };
    let listed = long_read(move || {
        // A client that leaves does not end the work.
        let _place = place;
        let (_pin, sequence) = match pinned(&view, at)? {
            Ok(pinned) => pinned,
            Err(unavailable) => return Ok(Err(unavailable)),
        };
        read(view.view().at(sequence), &wanted, after, at, page).map(Ok)
    });
    let listed = listed.await?;
    let (page, group_revision) =
        listed.map_err(|unavailable| translate::unavailable("revision", at, &unavailable))?;
    Ok(page.response(header, group_revision))
}

/// What to list.
enum Wanted {
    Of(Scope),
    Host(IpAddr),
    Mac(Mac),
}

fn wanted(request: &pb::ListRequest) -> Result<Wanted, Error> {
    let wanted = match &request.of {
        Some(Of::Group(group)) => translate::check_group("group", group)
            .map(|()| Wanted::Of(Scope::Group(Bytes::copy_from_slice(group.as_bytes())))),
        Some(Of::Vni(vni)) => translate::check_vni("vni", *vni).map(|()| Wanted::Of(Scope::Vni(*vni))),
        Some(Of::HostIp(ip)) => translate::ip("host_ip", ip).map(Wanted::Host),
        Some(Of::Mac(mac)) => {
            let problem = || format!("mac: {} is not a hardware address", translate::quoted(mac));
            parse_mac(mac).map(Wanted::Mac).ok_or_else(problem)
        }
        None => Err("nothing to list: give a group, a vni, a host_ip or a mac".to_owned()),
    };
    wanted.map_err(Error::invalid)
}

fn after(after: &pb::RuleKey) -> Result<RuleKey, Error> {
    translate::rule_key(after.vni, &after.ip)
        .map_err(|problem| Error::invalid(format_args!("after.{problem}")))
}

/// A page of what is wanted, as of `view`, which shows revision `at`; and the group's revision.
fn read(
    view: View<'_>,
    wanted: &Wanted,
    after: Option<RuleKey>,
    at: Revision,
    page: Page,
) -> Result<(Page, i64), StoreError> {
    let shown = |rule: &Rule| translate::shown(&rule.as_ref());
    let page = match wanted {
        Wanted::Of(scope) => page.fill(route::rules(view, scope, after), |rule| Some(shown(rule)))?,
        Wanted::Host(ip) => page.fill(route::all_rules(view, after), |rule: &Rule| {
            (rule.host_ip == Some(*ip)).then(|| shown(rule))
        })?,
        Wanted::Mac(mac) => page.fill(route::all_rules(view, after), |rule: &Rule| {
            (rule.mac == Some(*mac)).then(|| shown(rule))
        })?,
    };
    let revision = match wanted {
        Wanted::Of(Scope::Group(group)) => group_revision(view, group, at)?,
        _ => 0,
    };
    Ok((page, revision))
}

/// The revision of a group's newest change, or one that is certainly not earlier, as of `view`, which shows revision
/// `at`.
fn group_revision(view: View<'_>, group: &[u8], at: Revision) -> Result<i64, StoreError> {
    Ok(signed(route::group_revision(view, group)?.unwrap_or(at).0))
}

/// The revisions of groups.
///
/// # Errors
/// Too many groups, or a name that is too long; otherwise as every read.
pub(super) async fn group_revisions(
    engine: &Engine,
    request: pb::GroupRevisionsRequest,
) -> Result<pb::GroupRevisionsResponse, Error> {
    let count = request.groups.len();
    if count > GROUPS_MAX {
        return Err(Error::invalid(format_args!(
            "{count} groups in one request are too many, at most {GROUPS_MAX}"
        )));
    }
    translate::check_groups("groups", &request.groups)?;
    let view = consistency::view(engine, request.consistency.as_ref()).await?;
    let header = header_at(engine, view.progress());
    let revisions = long_read(move || {
        let of = |group: &String| group_revision(view.view(), group.as_bytes(), view.progress().revision);
        request.groups.iter().map(of).collect()
    });
    Ok(pb::GroupRevisionsResponse { header: Some(header), revisions: revisions.await? })
}

/// A page, and its bounds.
struct Page {
    limit: usize,
    bytes_max: usize,
    examined_max: usize,
    rules: Vec<pb::Rule>,
    /// If there may be more: the last key that was examined.
    next: Option<pb::RuleKey>,
}

impl Page {
    fn new(limit: usize, bytes_max: usize, examined_max: usize) -> Self {
        Self { limit, bytes_max, examined_max, rules: Vec::new(), next: None }
    }

    /// Takes those rules that `shown` shows until a bound is reached.
    fn fill<R: Keyed>(
        mut self,
        rules: impl Iterator<Item = Result<R, StoreError>>,
        shown: impl Fn(&R) -> Option<pb::Rule>,
    ) -> Result<Self, StoreError> {
        let (mut bytes, mut last) = (0, None);
        for (examined, rule) in rules.enumerate() {
            let rule = rule?;
            if self.rules.len() == self.limit || bytes > self.bytes_max || examined == self.examined_max {
                self.next = last.as_ref().map(translate::shown_key);
                break;
            }
            last = Some(rule.key());
            if let Some(rule) = shown(&rule) {
                bytes += rule.user_data.len() + rule.group.len() + 128;
                self.rules.push(rule);
            }
        }
        Ok(self)
    }

    fn response(self, header: quoin_proto::quoin::kv::v1::Header, group_revision: i64) -> pb::ListResponse {
        let Self { rules, next, .. } = self;
        pb::ListResponse { header: Some(header), rules, more: next.is_some(), next, group_revision }
    }
}

/// What has a rule's key.
trait Keyed {
    fn key(&self) -> RuleKey;
}

impl Keyed for Rule {
    fn key(&self) -> RuleKey {
        self.key
    }
}

impl Keyed for RuleRef<'_> {
    fn key(&self) -> RuleKey {
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::super::write;
    use super::*;

    const RULES: usize = 300;

    /// Rules of which every seventh is on one host, and every fifth has one MAC.
    fn rule(number: usize, group: &str) -> pb::Rule {
        pb::Rule {
            vni: (number % 3) as u32,
            ip: format!("10.0.{}.{}", number / 256, number % 256),
            mac: if number.is_multiple_of(5) { "02:00:00:00:00:05".into() } else { String::new() },
            host_ip: format!("192.168.0.{}", number % 7),
            group: group.into(),
            ..pb::Rule::default()
        }
    }

    async fn put(engine: &Engine, numbers: impl Iterator<Item = usize>, group: &str) -> i64 {
        let rules = numbers.map(|number| rule(number, group)).collect();
        write::put(engine, pb::PutRequest { rules, each_for_itself: false }).await.unwrap().revision
    }

    /// All pages; returns the last of the address of each rule in their order.
    async fn all(engine: &Engine, of: Of, revision: i64, limit: u32) -> Vec<(u32, String)> {
        let mut request = pb::ListRequest { of: Some(of), revision, limit, ..Default::default() };
        let mut found = Vec::new();
        loop {
            let page = list(engine, request.clone()).await.unwrap();
            assert_eq!(page.more, page.next.is_some());
            assert!(page.rules.len() <= limit as usize);
            found.extend(page.rules.into_iter().map(|rule| (rule.vni, rule.ip)));
            request.revision = page.header.unwrap().revision;
            request.after = page.next;
            if request.after.is_none() {
                return found;
            }
        }
    }

    fn expected(wanted: impl Fn(usize) -> bool) -> Vec<(u32, String)> {
        let mut keys: Vec<RuleKey> = (0..RULES)
            .filter(|number| wanted(*number))
            .map(|number| rule(number, ""))
            .map(|rule| RuleKey { vni: rule.vni, ip: rule.ip.parse().unwrap() })
            .collect();
        keys.sort_unstable();
        keys.iter().map(|key| (key.vni, key.ip.to_string())).collect()
    }

    #[test]
    fn rules_are_found_by_host_and_by_mac_page_by_page_now_and_at_a_revision() {
        crate::testing::alone(|engine| async move {
            let before = put(&engine, 0..RULES, "g").await;
            let host = || Of::HostIp("192.168.0.3".into());
            let mac = || Of::Mac("02-00-00-00-00-05".into());
            for limit in [1, 7, 1000] {
                assert_eq!(all(&engine, host(), 0, limit).await, expected(|number| number % 7 == 3));
                assert_eq!(all(&engine, mac(), 0, limit).await, expected(|number| number % 5 == 0));
            }
            // The same address under another name.
            let other = Of::HostIp("::ffff:192.168.0.3".into());
            assert_eq!(all(&engine, other, 0, 1000).await, expected(|number| number % 7 == 3));
            let keys = (0..100)
                .map(|number| rule(number, ""))
                .map(|rule| pb::RuleKey { vni: rule.vni, ip: rule.ip });
            write::delete(&engine, pb::DeleteRequest { keys: keys.collect(), all_of: None }).await.unwrap();
            let left = expected(|number| number % 7 == 3 && number >= 100);
            assert_eq!(all(&engine, host(), 0, 10).await, left);
            assert_eq!(all(&engine, host(), before, 10).await, expected(|number| number % 7 == 3));
            assert_eq!(all(&engine, Of::HostIp("10.9.9.9".into()), 0, 10).await, []);
            for (wrong, revision, problem) in [
                (Of::HostIp("host".into()), 0, "host_ip: \"host\" is not"),
                (Of::Mac("02:00".into()), 0, "mac: \"02:00\" is not"),
                (Of::Group("g".repeat(256)), 0, "group: 256 bytes"),
                (Of::Vni(1 << 24), 0, "vni: 16777216 does"),
                (Of::Vni(1), before + 9, &format!("revision: {} is in the future, the newest", before + 9)),
            ] {
                let request = pb::ListRequest { of: Some(wrong), revision, ..Default::default() };
                let told = list(&engine, request).await.unwrap_err().to_string();
                assert!(told.starts_with(problem), "{told}");
            }
        });
    }

    /// A page ends after so many rules that are not wanted, and the next one goes on there.
    #[test]
    fn a_page_examines_a_bounded_number_of_rules() {
        crate::testing::alone(|engine| async move {
            put(&engine, 0..RULES, "g").await;
            let view = engine.latest();
            let (mut after, mut found, mut pages) = (None, Vec::new(), 0);
            loop {
                let page = Page::new(1000, usize::MAX, 20);
                let wanted = Wanted::Host("192.168.0.3".parse().unwrap());
                let (page, _) = read(view.view(), &wanted, after, Revision(0), page).unwrap();
                assert!(page.rules.len() <= 3, "{} of 20 rules", page.rules.len());
                found.extend(page.rules.into_iter().map(|rule| (rule.vni, rule.ip)));
                pages += 1;
                let Some(next) = page.next else { break };
                after = Some(super::after(&next).unwrap());
            }
            assert_eq!((found, pages), (expected(|number| number % 7 == 3), RULES / 20));
        });
    }

    #[test]
    fn a_groups_revision_says_whether_it_has_changed() {
        crate::testing::alone(|engine| async move {
            let first = put(&engine, 0..2, "a").await;
            let second = put(&engine, 2..3, "b").await;
            let revisions = async |groups: &[&str]| {
                let groups = groups.iter().map(|group| (*group).to_owned()).collect();
                let request = pb::GroupRevisionsRequest { groups, consistency: None };
                group_revisions(&engine, request).await.unwrap().revisions
            };
            assert_eq!(revisions(&["b", "a", "b"]).await, [second, first, second]);
            let listed = async |revision| {
                let of = Some(Of::Group("a".into()));
                let request = pb::ListRequest { of, revision, ..Default::default() };
                list(&engine, request).await.unwrap().group_revision
            };
            assert_eq!((listed(0).await, listed(second).await), (first, first));
            let keys =
                (0..2).map(|number| rule(number, "")).map(|rule| pb::RuleKey { vni: rule.vni, ip: rule.ip });
            write::delete(&engine, pb::DeleteRequest { keys: keys.collect(), all_of: None }).await.unwrap();
            let third = engine.latest().progress().revision.0 as i64;
            assert_eq!(revisions(&["a", "b"]).await, [third, second]);
            assert_eq!((listed(0).await, listed(second).await), (third, first), "also though it is empty");
            let long = pb::GroupRevisionsRequest { groups: vec!["g".repeat(256)], consistency: None };
            assert!(group_revisions(&engine, long).await.is_err());
        });
    }
}
