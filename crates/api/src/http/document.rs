//! The OpenAPI document of all faces.

use super::{ledger, route};
use utoipa::OpenApi;

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
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_openapi_3_1_and_has_every_path() {
        let document = serde_json::to_value(document()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().unwrap();
        assert_eq!(paths.len(), 29);
        assert!(document["components"]["schemas"]["Problem"]["properties"]["type"].is_object());
        let text = document.to_string();
        assert!(!text.contains("\"type\":\"number\""), "amounts are never floats");
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
