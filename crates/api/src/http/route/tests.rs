//! The pages, asked as clients do.

use crate::grpc::route::Route;
use crate::http::api;
use crate::ledger::Book;
use crate::life::Life;
use crate::testing::alone;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use futures_util::StreamExt;
use quoin_engine::Engine;
use serde_json::{Value, json};
use tower_service::Service;

/// A node's pages.
#[derive(Clone)]
struct Pages(Router);

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// The status, the type of the problem, and the field that is wrong.
    fn problem(&self) -> (u16, String, Option<String>) {
        let problem = self.json();
        let word = problem["type"].as_str().expect("a problem").replace("urn:quoin:problem:", "");
        (self.status, word, problem["field"].as_str().map(str::to_owned))
    }
}

impl Pages {
    async fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let answer = self.0.call(request.body(body).unwrap()).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        Answer { status, headers, body: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &[], &Value::Null).await
    }

    /// Writes a rule and returns its revision.
    async fn put(&mut self, path: &str, rule: &Value) -> u64 {
        let answer = self.ask("PUT", path, &[], rule).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["revision"].as_u64().unwrap()
    }

    /// The first `count` events of a stream: name, id, data.
    async fn events(&mut self, query: &str, seen: &str, count: usize) -> Vec<(String, String, Value)> {
        let seen = [("last-event-id", seen)];
        let seen = if seen[0].1.is_empty() { &[] } else { &seen[..] };
        let answer = self.0.call(events_request(query, seen)).await.unwrap();
        assert_eq!(answer.status(), 200);
        let (mut text, mut pieces) = (String::new(), answer.into_body().into_data_stream());
        while text.matches("\n\n").count() < count {
            text += std::str::from_utf8(&pieces.next().await.unwrap().unwrap()).unwrap();
        }
        let field = |event: &str, name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_default().to_owned()
        };
        let events = text.split("\n\n").take(count);
        let data = |event| serde_json::from_str(&field(event, "data")).unwrap();
        events.map(|event| (field(event, "event"), field(event, "id"), data(event))).collect()
    }
}

fn events_request(query: &str, headers: &[(&str, &str)]) -> Request {
    let request = Request::builder().uri(format!("/v1/rules/events{query}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Body::empty()).unwrap()
}

fn with_pages(test: impl AsyncFnOnce(Pages, Engine)) {
    alone(|engine| async move {
        let (_running, life) = tokio::sync::watch::channel(false);
        let route = Route::new(engine.clone(), Life(life.clone()));
        test(Pages(api(Book::start(engine.clone()), route, Life(life))), engine).await;
    });
}

#[test]
fn a_rule_is_written_read_as_it_is_and_was_and_deleted() {
    with_pages(async |mut pages, _| {
        let target =
            json!({"mac": "02:00:00:00:00:01", "host_ip": "192.168.0.1", "group": "g", "user_data": "é"});
        let path = "/v1/rules/100/10.0.0.1";
        let first = pages.put(path, &target).await;
        let found = pages.get(path).await;
        let mut expected = target.clone();
        (expected["vni"], expected["ip"], expected["revision"]) =
            (100.into(), "10.0.0.1".into(), first.into());
        assert_eq!((found.status, found.json()), (200, expected.clone()));
        let tag = format!("\"{first}\"");
        assert_eq!(found.headers["etag"], tag);
        assert_eq!(pages.ask("GET", path, &[("if-none-match", &tag)], &Value::Null).await.status, 304);
        // The same address, written in another way, and bytes that are no text.
        let second = pages.put("/v1/rules/100/::ffff:10.0.0.1", &json!({"user_data_hex": "ff00"})).await;
        let now = pages.ask("GET", path, &[("if-none-match", &tag)], &Value::Null).await;
        assert_eq!(
            now.json(),
            json!({"vni": 100, "ip": "10.0.0.1", "user_data_hex": "ff00", "revision": second})
        );
        assert_eq!(pages.get(&format!("{path}?at_revision={first}")).await.json(), expected);
        let future = pages.get(&format!("{path}?at_revision={}", second + 1)).await;
        assert_eq!(future.problem(), (400, "out_of_range".into(), Some("at_revision".into())));
        for deleted in [1, 0] {
            let answer = pages.ask("DELETE", path, &[], &Value::Null).await;
            assert_eq!((answer.status, &answer.json()["deleted"]), (200, &deleted.into()));
        }
        assert_eq!(pages.get(path).await.problem(), (404, "rule_unknown".into(), None));
        for number in 1..=3 {
            pages.put(&format!("/v1/rules/{number}/fd00::1"), &json!({"group": "h"})).await;
        }
        for (query, deleted) in [("vni=1", 1), ("group=h", 2), ("group=h", 0)] {
            let answer = pages.ask("DELETE", &format!("/v1/rules?{query}"), &[], &Value::Null).await;
            assert_eq!(answer.json()["deleted"], deleted, "{query}");
        }
    });
}

#[test]
fn what_is_wrong_is_named_with_its_field_and_nothing_is_written() {
    with_pages(async |mut pages, engine| {
        let before = engine.latest().progress().revision;
        let good = "/v1/rules/1/10.0.0.1";
        let long = "x".repeat(256);
        for (method, path, body, word, field) in [
            ("PUT", "/v1/rules/16777216/10.0.0.1", json!({}), "invalid_field", Some("vni")),
            ("PUT", "/v1/rules/x/10.0.0.1", json!({}), "invalid_field", Some("vni")),
            ("PUT", "/v1/rules/1/10.0.0", json!({}), "invalid_field", Some("ip")),
            ("PUT", good, json!({"mac": "01:00:5e:00:00:01"}), "invalid_field", Some("mac")),
            ("PUT", good, json!({"host_ip": "x"}), "invalid_field", Some("host_ip")),
            ("PUT", good, json!({ "group": long }), "invalid_field", Some("group")),
            ("PUT", good, json!({"user_data_hex": "abc"}), "invalid_field", Some("user_data_hex")),
            (
                "PUT",
                good,
                json!({"user_data": "a", "user_data_hex": "ab"}),
                "invalid_field",
                Some("user_data_hex"),
            ),
            ("PUT", good, json!({"mak": "x"}), "malformed", Some("mak")),
            ("PUT", good, json!([]), "malformed", None),
            (
                "POST",
                "/v1/rules/lookup",
                json!({"lookups": [{"vni": 1, "ip": "x"}]}),
                "invalid_field",
                Some("lookups[0].ip"),
            ),
            ("POST", "/v1/rules/batch", json!({}), "invalid", None),
            (
                "POST",
                "/v1/rules/batch",
                json!({"puts": [{"vni": 1, "ip": "10.0.0.1", "user_data_hex": "x"}]}),
                "invalid_field",
                Some("puts[0].user_data_hex"),
            ),
            (
                "POST",
                "/v1/rules/batch",
                json!({"puts": [{"vni": 1, "ip": "10.0.0.1"}], "deletes": [{"vni": 1, "ip": "x"}]}),
                "invalid_field",
                Some("deletes[0].ip"),
            ),
            ("PUT", "/v1/vpcs/a", json!({"vni": 1 << 24}), "invalid_field", Some("vni")),
            ("PUT", "/v1/vpcs/a", json!({"cidrs": ["x"]}), "invalid_field", Some("cidrs[0]")),
            ("PUT", "/v1/vpcs/a", json!({"metadata": {"": "x"}}), "invalid_field", Some("metadata")),
            ("PUT", "/v1/vpcs/a", json!({"cidr": "x"}), "malformed", Some("cidr")),
            ("PUT", &format!("/v1/vpcs/{long}"), json!({}), "invalid_field", Some("name")),
            ("GET", "/v1/vpcs?vni=0", Value::Null, "invalid_field", Some("vni")),
            ("PUT", "/v1/gateway-clusters/a", json!({"port": 65_536}), "invalid_field", Some("port")),
            ("PUT", "/v1/gateway-clusters/a", json!({"overlay": "x"}), "malformed", Some("overlay")),
            (
                "PUT",
                "/v1/gateway-clusters/a",
                json!({"gateways": [{"ip": "x"}]}),
                "invalid_field",
                Some("gateways[0].ip"),
            ),
            ("PUT", "/v1/nodes/a", json!({"interface": "a b"}), "invalid_field", Some("interface")),
            ("GET", "/v1/nodes?limit=10001", Value::Null, "invalid_field", Some("limit")),
            ("POST", "/v1/nodes/a/heartbeat", json!({"ttl_ms": 99}), "invalid_field", Some("ttl_ms")),
            ("POST", "/v1/nodes/a/heartbeat", json!({"ttl_ms": 0}), "invalid_field", Some("ttl_ms")),
            ("GET", "/v1/rules?host_ip=x", Value::Null, "invalid_field", Some("host_ip")),
            ("GET", "/v1/rules?mac=x", Value::Null, "invalid_field", Some("mac")),
            ("GET", "/v1/rules", Value::Null, "invalid_field", Some("group")),
            ("GET", "/v1/rules?group=a&vni=1", Value::Null, "invalid_field", Some("group")),
            ("GET", "/v1/rules?group=a&limit=10001", Value::Null, "invalid_field", Some("limit")),
            ("GET", "/v1/rules?group=a&after=1", Value::Null, "invalid_field", Some("after")),
            ("GET", "/v1/rules?group=a&after=1/x", Value::Null, "invalid_field", Some("after.ip")),
            ("GET", "/v1/rules?group=a&lag_ms_max=1", Value::Null, "invalid_field", Some("lag_ms_max")),
            ("GET", "/v1/rules?grup=a", Value::Null, "invalid_parameter", Some("grup")),
            ("GET", "/v1/rules?group=a&limit=-1", Value::Null, "invalid_parameter", Some("limit")),
            ("GET", "/v1/rules?group=a&group=b", Value::Null, "invalid_parameter", None),
            ("GET", "/v1/rules?group=a&at_revision=99", Value::Null, "out_of_range", Some("at_revision")),
            ("DELETE", "/v1/rules", Value::Null, "invalid_field", Some("group")),
            ("DELETE", "/v1/rules?vni=16777216", Value::Null, "invalid_field", Some("vni")),
            ("GET", "/v1/rules?vni=16777216", Value::Null, "invalid_field", Some("vni")),
            ("GET", &format!("/v1/rules?group={long}"), Value::Null, "invalid_field", Some("group")),
            ("GET", "/v1/rules/events", Value::Null, "invalid_field", Some("group")),
            ("GET", "/v1/rules/events?vni=16777216", Value::Null, "invalid_field", Some("vni")),
            ("GET", "/v1/rules/events?vni=x", Value::Null, "invalid_field", Some("vni")),
            ("GET", "/v1/rules/events?grup=x", Value::Null, "invalid_field", Some("grup")),
        ] {
            let answer = pages.ask(method, path, &[], &body).await;
            assert_eq!(answer.problem(), (400, word.into(), field.map(Into::into)), "{method} {path} {body}");
        }
        assert_eq!(engine.latest().progress().revision, before);
    });
}

/// Only rules have ETags: a VPC was replaced although its client had asked for another state of it.
#[test]
fn a_condition_that_is_not_checked_is_refused() {
    with_pages(async |mut pages, engine| {
        let before = engine.latest().progress().revision;
        for (method, path, body) in [
            ("PUT", "/v1/vpcs/a", json!({})),
            ("DELETE", "/v1/vpcs/a", Value::Null),
            ("PUT", "/v1/gateway-clusters/a", json!({})),
            ("DELETE", "/v1/gateway-clusters/a", Value::Null),
            ("PUT", "/v1/nodes/a", json!({})),
            ("DELETE", "/v1/nodes/a", Value::Null),
            ("DELETE", "/v1/rules?group=g", Value::Null),
            ("POST", "/v1/rules/batch", json!({"puts": [{"vni": 1, "ip": "10.0.0.1"}]})),
        ] {
            for (header, value, field) in
                [("if-match", "\"1\"", "If-Match"), ("if-none-match", "*", "If-None-Match")]
            {
                let answer = pages.ask(method, path, &[(header, value)], &body).await;
                assert_eq!(
                    answer.problem(),
                    (400, "invalid_field".into(), Some(field.into())),
                    "{method} {path}"
                );
            }
        }
        assert_eq!(engine.latest().progress().revision, before);
    });
}

/// A proxy that compresses answers makes their tags weak, and caches send several.
#[test]
fn a_rule_is_not_sent_again_to_those_who_have_it() {
    with_pages(async |mut pages, _| {
        let path = "/v1/rules/1/10.0.0.1";
        let revision = pages.put(path, &json!({})).await;
        for (tag, status) in [
            (format!("\"{revision}\""), 304),
            (format!("W/\"{revision}\""), 304),
            (format!("\"1\", W/\"{revision}\""), 304),
            ("*".into(), 304),
            (format!("\"{revision}0\", \"x\""), 200),
            (format!("{revision}"), 200),
        ] {
            let answer = pages.ask("GET", path, &[("if-none-match", &tag)], &Value::Null).await;
            assert_eq!(answer.status, status, "{tag}");
        }
        // As in lists, 0 is the newest revision.
        assert_eq!(pages.get(&format!("{path}?at_revision=0")).await.json()["revision"], revision);
    });
}

#[test]
fn lookups_are_answered_in_their_order() {
    with_pages(async |mut pages, _| {
        pages.put("/v1/rules/1/10.0.0.1", &json!({"group": "a"})).await;
        pages.put("/v1/rules/1/10.0.0.2", &json!({"group": "b"})).await;
        let key = |ip| json!({"vni": 1, "ip": ip});
        let body = json!({"lookups": [key("10.0.0.2"), key("10.0.0.3"), key("10.0.0.1")]});
        let found = pages.ask("POST", "/v1/rules/lookup", &[], &body).await.json();
        let groups: Vec<_> =
            found["rules"].as_array().unwrap().iter().map(|rule| rule["group"].clone()).collect();
        assert_eq!(groups, [json!("b"), Value::Null, json!("a")]);
    });
}

#[test]
fn a_list_shows_one_revision_by_the_page_and_as_one_csv() {
    with_pages(async |mut pages, _| {
        let mut revision = 0;
        for number in 0..5_u64 {
            // Two rules are more than one piece of CSV.
            let target =
                json!({"group": "g", "user_data": format!(" \"{number}\"\n,{}", "x".repeat(60_000))});
            revision = pages.put(&format!("/v1/rules/1/10.0.0.{number}"), &target).await;
        }
        let list = "/v1/rules?group=g";
        let (mut rules, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("{list}&limit=2&at_revision={revision}{after}");
            let page = pages.get(&path).await.json();
            assert_eq!(page["revision"], revision);
            rules.extend(page["rules"].as_array().unwrap().clone());
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
            // What comes after does not show.
            pages.put("/v1/rules/1/10.0.0.99", &json!({"group": "g"})).await;
        }
        assert_eq!(rules.len(), 5);
        assert_eq!(pages.get("/v1/rules?vni=1").await.json()["rules"].as_array().unwrap().len(), 6);
        let csv = [("accept", "text/csv")];
        let path = format!("{list}&at_revision={revision}");
        let all = pages.ask("GET", &path, &csv, &Value::Null).await;
        assert_eq!(all.headers["quoin-revision"], revision.to_string());
        let mut reader = csv::Reader::from_reader(all.body.as_bytes());
        let head = reader.headers().unwrap().clone();
        let rows: Vec<Value> = reader
            .records()
            .map(|row| {
                let row = row.unwrap();
                let fields = head.iter().zip(&row).filter(|(_, value)| !value.is_empty());
                let numbers = ["vni", "revision"];
                fields
                    .map(|(name, value)| {
                        let number = numbers.contains(&name).then(|| value.parse::<u64>().unwrap());
                        (name.to_owned(), number.map_or(json!(value), |number| json!(number)))
                    })
                    .collect()
            })
            .collect();
        // A blank at an end is lost to readers of CSV.
        for rule in &mut rules {
            let text = rule.as_object_mut().unwrap().remove("user_data").unwrap();
            rule["user_data_hex"] = super::model::hex(text.as_str().unwrap().as_bytes()).into();
        }
        assert_eq!(rows, rules);
        let three = pages.ask("GET", &format!("{path}&limit=3"), &csv, &Value::Null).await;
        assert_eq!(csv::Reader::from_reader(three.body.as_bytes()).records().count(), 3);
    });
}

#[test]
fn events_go_on_after_the_last_whole_revision_and_not_in_the_future_or_in_another_cluster() {
    with_pages(async |mut pages, engine| {
        let one = pages.put("/v1/rules/1/10.0.0.1", &json!({"group": "g"})).await;
        // Two changes of one revision.
        let two = {
            let rule = |ip: &str| quoin_proto::quoin::route::v1::Rule {
                vni: 1,
                ip: ip.into(),
                group: "g".into(),
                ..Default::default()
            };
            let (mut packed, mut scratch) = (Vec::new(), Vec::new());
            for ip in ["10.0.0.2", "10.0.0.3"] {
                let rule = crate::grpc::route::translate::rule(rule(ip)).unwrap();
                quoin_core::route::pack_rule(&mut packed, &rule, &mut scratch);
            }
            let put = quoin_core::route::Operation::Put(packed.into());
            crate::grpc::route::write::operation(&engine, put).await.unwrap().0.0
        };
        let answer = pages.ask("DELETE", "/v1/rules/1/10.0.0.1", &[], &Value::Null).await.json();
        let three = answer["revision"].as_u64().unwrap();
        let place = |revision: u64| format!("{revision}@{:016x}", engine.cluster());
        let seen = pages.events(&format!("?group=g&from_revision={one}"), "", 4).await;
        let shown: Vec<_> = seen
            .iter()
            .map(|(name, id, data)| (name.as_str(), id.clone(), data["ip"].as_str().unwrap().to_owned()))
            .collect();
        let expected = [
            ("put", place(one), "10.0.0.1".to_owned()),
            ("put", String::new(), "10.0.0.2".to_owned()),
            ("put", place(two), "10.0.0.3".to_owned()),
            ("delete", place(three), "10.0.0.1".to_owned()),
        ];
        assert_eq!(shown, expected);
        // A client that was cut off between the changes of a revision has the id of the one before.
        assert_eq!(pages.events("?group=g", &place(one), 3).await, seen[1..]);
        assert_eq!(pages.events("?vni=1", &place(two), 1).await, seen[3..]);
        let whole = pages.events("?group=g&from_revision=0", "", 3).await;
        let names: Vec<_> = whole.iter().map(|(name, id, _)| (name.as_str(), id.clone())).collect();
        assert_eq!(names, [("snapshot", "".into()), ("snapshot", "".into()), ("snapshot_end", place(three))]);
        // The next revision is awaited, a later one may never come.
        let (mut other, last, rule) = (pages.clone(), place(three), json!({"group": "g"}));
        let (awaited, done) =
            tokio::join!(other.events("?group=g", &last, 2), pages.put("/v1/rules/1/10.0.0.9", &rule));
        // Beside it the client hears that it has caught up, before or after.
        let put = awaited.iter().find(|(name, ..)| name == "put").unwrap();
        assert_eq!(put.1, place(done));
        assert!(awaited.iter().any(|(name, ..)| name == "progress"));
        let future = done + 2;
        let out_of_range = |field: &str| (400, "out_of_range".to_owned(), Some(field.to_owned()));
        let answer = pages.get(&format!("/v1/rules/events?group=g&from_revision={future}")).await;
        assert_eq!(answer.problem(), out_of_range("from_revision"));
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(
            detail.starts_with(&format!("{future} is in the future, the newest revision is {done}")),
            "{detail}"
        );
        // Some clients send an empty id before they have seen one.
        let seen = [("last-event-id", "")];
        let events = pages.0.call(events_request("?group=g", &seen)).await.unwrap();
        assert_eq!(events.status(), 200);
        for (id, problem) in [
            (place(future), out_of_range("Last-Event-ID")),
            (format!("{one}@00000000000000ff"), out_of_range("Last-Event-ID")),
            ("17".into(), (400, "invalid_field".into(), Some("Last-Event-ID".into()))),
        ] {
            let seen = [("last-event-id", id.as_str())];
            let answer = pages.ask("GET", "/v1/rules/events?group=g", &seen, &Value::Null).await;
            assert_eq!(answer.problem(), problem, "{id}");
        }
    });
}

#[test]
fn a_write_with_conditions_is_done_once_and_refused_where_they_do_not_hold() {
    with_pages(async |mut pages, engine| {
        let path = "/v1/rules/1/10.0.0.1";
        let changed = |field: &str| (412, "changed".to_owned(), Some(field.to_owned()));
        let new = [("if-none-match", "*")];
        let first = pages.ask("PUT", path, &new, &json!({"group": "a"})).await;
        assert_eq!(first.status, 200, "{}", first.body);
        let tag = first.headers["etag"].to_str().unwrap().to_owned();
        let same = [("if-match", tag.as_str())];
        assert_eq!(pages.ask("PUT", path, &new, &json!({})).await.problem(), changed("If-None-Match"));
        let second = pages.ask("PUT", path, &same, &json!({"group": "b"})).await;
        assert_eq!(second.status, 200, "{}", second.body);
        assert_eq!(
            pages.ask("PUT", path, &same, &json!({"group": "c"})).await.problem(),
            changed("If-Match")
        );
        assert_eq!(pages.ask("DELETE", path, &same, &Value::Null).await.problem(), changed("If-Match"));
        let revision = second.json()["revision"].as_u64().unwrap();
        assert_eq!(engine.latest().progress().revision.0, revision);
        for (name, value) in [
            ("if-match", "*"),
            ("if-match", "17"),
            ("if-match", "\"9223372036854775808\""),
            ("if-none-match", "\"17\""),
        ] {
            let answer = pages.ask("PUT", path, &[(name, value)], &json!({})).await;
            assert_eq!(
                (answer.status, answer.problem().1.as_str()),
                (400, "invalid_field"),
                "{name}: {value}"
            );
        }
        // The rule moves, or nothing is done. It is sent as it was read.
        let mut moved = pages.get(path).await.json();
        moved["ip"] = "10.0.0.2".into();
        let key = |ip: &str| json!({"vni": 1, "ip": ip});
        let at = |ip: &str, revision: u64| json!({"vni": 1, "ip": ip, "revision": revision});
        let batch = json!({
            "puts": [moved], "deletes": [key("10.0.0.1")], "conditions": [at("10.0.0.2", 0), at("10.0.0.1", revision)],
        });
        let done = pages.ask("POST", "/v1/rules/batch", &[], &batch).await.json();
        assert_eq!(done, json!({"revision": revision + 1, "written": 1, "deleted": 1}));
        let again = pages.ask("POST", "/v1/rules/batch", &[], &batch).await;
        assert_eq!(again.problem(), changed("conditions[0]"));
        assert_eq!(pages.get("/v1/rules/1/10.0.0.2").await.json()["group"], "b");
        let tag = format!("\"{}\"", revision + 1);
        let deleted = pages.ask("DELETE", "/v1/rules/1/10.0.0.2", &[("if-match", &tag)], &Value::Null).await;
        assert_eq!(deleted.json(), json!({"deleted": 1, "revision": revision + 2}));
    });
}

/// Where few rules match, a page can be empty though there are more.
#[test]
fn rules_are_found_by_host_and_hardware_address() {
    with_pages(async |mut pages, _| {
        for number in 1..=3 {
            let target = json!({"host_ip": "192.168.0.1", "mac": format!("02:00:00:00:00:0{number}")});
            pages.put(&format!("/v1/rules/{number}/10.0.0.1"), &target).await;
        }
        let found = pages.get("/v1/rules?host_ip=192.168.0.1&limit=2").await.json();
        assert_eq!((found["rules"].as_array().unwrap().len(), &found["next"]), (2, &"2/10.0.0.1".into()));
        let found = pages.get("/v1/rules?mac=02-00-00-00-00-03").await.json();
        assert_eq!((&found["rules"][0]["vni"], &found["next"]), (&3.into(), &Value::Null));
        let csv = [("accept", "text/csv")];
        let all = pages.ask("GET", "/v1/rules?host_ip=192.168.0.1", &csv, &Value::Null).await;
        assert_eq!(csv::Reader::from_reader(all.body.as_bytes()).records().count(), 3);
    });
}

#[test]
fn objects_are_written_read_listed_and_deleted() {
    with_pages(async |mut pages, _| {
        let vpc = json!({
            "vni": 300, "cidrs": ["10.0.0.0/8"], "segment": "s", "gateways": ["10.0.0.1"], "metadata": {"owner": "a"},
        });
        let cluster = json!({
            "gateways": [{"ip": "10.9.0.1", "mac": "02:00:00:00:00:01", "vni": 7, "port": 1}], "vnis": [300],
            "ip_ranges": ["10.9.0.0/24"], "port": 6081, "overlay": "geneve", "vni": 2, "metadata": {},
        });
        let node = json!({
            "address": "a", "groups": ["g"], "control_address": "10.0.0.1:50051", "interface": "eth0",
            "mac": "02:00:00:00:00:07", "metadata": {"rack": "7"},
        });
        for (kind, list, fields) in [
            ("vpcs", "vpcs", vpc),
            ("gateway-clusters", "gateway_clusters", cluster),
            ("nodes", "nodes", node),
        ] {
            let path = |name: &str| format!("/v1/{kind}/{name}");
            let written = pages.ask("PUT", &path("a"), &[], &fields).await;
            let mut expected = fields.clone();
            (expected["name"], expected["revision"]) = ("a".into(), written.json()["revision"].clone());
            assert_eq!((written.status, written.json()), (200, expected.clone()), "{kind}");
            assert_eq!(pages.get(&path("a")).await.json(), expected);
            assert_eq!(pages.ask("PUT", &path("b"), &[], &json!({})).await.status, 200);
            let page = pages.get(&format!("/v1/{kind}?limit=1")).await.json();
            assert_eq!((&page[list], &page["next"]), (&json!([expected]), &"a".into()));
            let page = pages.get(&format!("/v1/{kind}?after=a&local=true")).await.json();
            assert_eq!((&page[list][0]["name"], &page["next"]), (&"b".into(), &Value::Null));
            for deleted in [1, 0] {
                let answer = pages.ask("DELETE", &path("b"), &[], &Value::Null).await;
                assert_eq!(answer.json()["deleted"], deleted);
            }
            assert_eq!(pages.get(&path("b")).await.problem(), (404, "object_unknown".into(), None));
        }
        let taken = pages.ask("PUT", "/v1/vpcs/c", &[], &json!({"vni": 300})).await;
        assert_eq!(taken.problem(), (409, "already_exists".into(), Some("vni".into())));
        assert!(taken.body.contains("\\\"a\\\""), "{}", taken.body);
        for (vni, count) in [(300, 1), (301, 0)] {
            let page = pages.get(&format!("/v1/vpcs?vni={vni}")).await.json();
            assert_eq!(page["vpcs"].as_array().unwrap().len(), count, "{vni}");
        }
        let beat = json!({"ttl_ms": 60_000, "applied_revision": 3});
        assert_eq!(pages.ask("POST", "/v1/nodes/a/heartbeat", &[], &beat).await.status, 200);
        assert_eq!(pages.ask("POST", "/v1/nodes/a/heartbeat", &[], &Value::Null).await.status, 200);
        let nobody = pages.ask("POST", "/v1/nodes/x/heartbeat", &[], &beat).await;
        assert_eq!(nobody.problem().0, 404);
        assert!(nobody.body.contains("\\\"x\\\""), "{}", nobody.body);
        for node in
            [pages.get("/v1/nodes/a").await.json(), pages.get("/v1/nodes").await.json()["nodes"][0].clone()]
        {
            assert_eq!(
                (&node["status"]["alive"], &node["status"]["applied_revision"]),
                (&true.into(), &0.into())
            );
        }
    });
}
