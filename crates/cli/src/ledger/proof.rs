//! The proof of the indexes: what each holds is what the journal says it should hold.
//!
//! Both are sums of a digest per transfer and value, so that nothing has to be kept for each transfer. A difference says
//! which index is wrong, and by how many; not where.

use super::client::Client;
use super::journal::Entry;
use super::query::index_name;
use anyhow::Result;
use quoin_proto::quoin::ledger::v1 as pb;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What an index should hold, or holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contents {
    transfers: u64,
    digest: u128,
}

impl Contents {
    fn add(&mut self, value: &[u8], revision: u64, position: u32) {
        let digest = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, value, revision, position).hash(&mut hasher);
            u128::from(hasher.finish())
        };
        self.transfers += 1;
        self.digest = self.digest.wrapping_add(digest(0) << 64 | digest(1));
    }
}

/// The indexes that are kept, and what they should hold.
pub(super) struct Indexes {
    kept: Vec<(pb::Index, u64, Contents)>,
}

impl Indexes {
    /// Those that are kept now; call it before the journal is read.
    pub(super) async fn open(client: &mut Client) -> Result<Self> {
        let states = client.get_indexes(pb::GetIndexesRequest::default()).await?.into_inner();
        let mut kept = vec![(pb::Index::Account, 0, Contents::default())];
        kept.extend(states.on.iter().map(|one| (one.index(), one.since_revision, Contents::default())));
        Ok(Self { kept })
    }

    /// Notes a recorded transfer.
    pub(super) fn take(&mut self, entry: &Entry) {
        let (revision, position) = (entry.recorded.revision, entry.recorded.position);
        for (index, since, contents) in &mut self.kept {
            if *index == pb::Index::Account && entry.recorded.code() == pb::Code::Ok {
                contents.add(&entry.recorded.debit_account, revision, position);
                contents.add(&entry.recorded.credit_account, revision, position);
            } else if revision >= *since && entry.asked.kind() != pb::Kind::Expired {
                let value = value(*index, &entry.asked);
                if value.iter().any(|byte| *byte > 0) {
                    contents.add(&value, revision, position);
                }
            }
        }
    }

    /// Compares each with what it holds, up to revision `until`.
    pub(super) async fn compare(
        self,
        client: &mut Client,
        until: u64,
        problems: &mut Vec<String>,
    ) -> Result<()> {
        for (index, since, expected) in self.kept {
            let mut held = Contents::default();
            let mut request = pb::IndexRowsRequest { index: index.into(), ..Default::default() };
            loop {
                let page = client.index_rows(request.clone()).await?.into_inner();
                for row in page.rows.iter().filter(|row| (since..=until).contains(&row.revision)) {
                    row.positions.iter().for_each(|position| held.add(&row.value, row.revision, *position));
                }
                request.cursor = page.cursor;
                if request.cursor.is_empty() {
                    break;
                }
            }
            if held != expected {
                let name = index_name(index);
                problems.push(format!(
                    "the index by {name} has {} entries since revision {since} that are not just the {} of the journal",
                    held.transfers, expected.transfers
                ));
            }
        }
        Ok(())
    }
}

/// The value by which a transfer is in an index, as in its rows; empty or zero if it is not in it.
fn value(index: pb::Index, asked: &pb::Transfer) -> Vec<u8> {
    let extra = asked.extra.as_deref();
    match index {
        pb::Index::Account => Vec::new(),
        pb::Index::Reference => {
            let length = u16::try_from(asked.reference.len()).unwrap_or(u16::MAX);
            [&length.to_be_bytes(), asked.reference.as_bytes()].concat()
        }
        pb::Index::UserData128 => extra.map_or(Vec::new(), |extra| {
            [extra.user_data_128_high.to_be_bytes(), extra.user_data_128.to_be_bytes()].concat()
        }),
        pb::Index::UserData64 => extra.map_or(Vec::new(), |extra| extra.user_data_64.to_be_bytes().to_vec()),
        pb::Index::UserData32 => extra.map_or(Vec::new(), |extra| extra.user_data_32.to_be_bytes().to_vec()),
        pb::Index::Code => asked.code.to_be_bytes().to_vec(),
    }
}
