//! The OpenAPI document of all faces.

use super::{ledger, route};
use utoipa::OpenApi;
use utoipa::openapi::{PathItem, RefOr};

#[derive(OpenApi)]
#[openapi(info(
    title = "Quoin",
    description = "The ledger: accounts, and transfers between them, double-entry. An id of your choice makes every \
        request safe to send again, forever. Amounts are decimal texts. A refusal is recorded like everything else.\n\n\
        Routing rules by network and address: where the packets for an address go. Writing or deleting a rule again \
        does no harm."
))]
struct Head;

/// The document.
pub(super) fn document() -> utoipa::openapi::OpenApi {
    let mut document = Head::openapi();
    for face in [ledger::Document::openapi(), route::Document::openapi()] {
        document.merge(face);
    }
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    describe_responses(&mut document);
    document
}

/// Describes the responses that have no words of their own: the standard requires a description. Every operation can
/// meet a 5XX.
fn describe_responses(document: &mut utoipa::openapi::OpenApi) {
    for path in document.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, patch, .. } = path;
        for operation in [get, put, post, delete, patch].into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            // A problem as well, of the cluster or this node.
            if let Some(refused) = responses.get("4XX").cloned() {
                responses.insert("5XX".to_owned(), refused);
            }
            for (status, response) in responses {
                if let RefOr::T(response) = response
                    && response.description.is_empty()
                {
                    response.description = meaning(status).to_owned();
                }
            }
        }
    }
}

fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "Done",
        "201" => "Created",
        "202" => "Accepted: it will be done, or refused, after this answer",
        "304" => "It is as the client has it",
        "4XX" => "Nothing was done: the problem says why",
        "5XX" => "The problem says whether it was done, and Retry-After when to ask again",
        _ => "See /docs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_document_is_openapi_3_1_and_has_every_path() {
        let document = serde_json::to_value(document()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 31);
        assert!(document["components"]["schemas"]["Problem"]["properties"]["type"].is_object());
        let text = document.to_string();
        assert!(!text.contains("\"type\":\"number\""), "amounts are never floats");
    }

    /// Generators of clients refused the document, or made one function of all that were called `get`.
    #[test]
    fn each_operation_has_an_id_of_its_own_and_each_response_a_description() {
        let document = serde_json::to_value(document()).unwrap();
        let mut ids = BTreeSet::new();
        let paths = document["paths"].as_object().unwrap().values();
        for operation in paths.flat_map(|path| path.as_object().unwrap().values()) {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id), "{id} is there twice");
            assert!(operation["responses"]["5XX"]["content"]["application/problem+json"].is_object(), "{id}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(
                    response["description"].as_str().is_some_and(|text| !text.is_empty()),
                    "{id} {status}"
                );
            }
        }
        assert!(ids.len() > 30, "{ids:?}");
    }

    /// The default of metadata was a list.
    #[test]
    fn the_defaults_of_objects_are_objects() {
        let document = serde_json::to_value(document()).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let fields = schemas.iter().flat_map(|(name, schema)| {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields.map(move |(field, of)| (name, field, of))
        });
        let objects: Vec<_> = fields.filter(|(.., of)| of["type"] == "object").collect();
        assert!(objects.len() > 3, "{objects:?}");
        for (name, field, of) in objects {
            assert!(of.get("default").is_none_or(Value::is_object), "{name}.{field}: {of}");
        }
    }

    /// Of two schemas with one name, only one would be in the document.
    #[test]
    fn faces_mean_the_same_by_the_name_of_a_schema() {
        let schemas = |part: utoipa::openapi::OpenApi| part.components.expect("schemas").schemas;
        let (ledger, route) = (schemas(ledger::Document::openapi()), schemas(route::Document::openapi()));
        let shared: Vec<_> = ledger.iter().filter(|(name, _)| route.contains_key(*name)).collect();
        assert!(shared.iter().any(|(name, _)| *name == "Problem"));
        for (name, schema) in shared {
            assert!(route[name] == *schema, "{name}");
        }
    }
}
