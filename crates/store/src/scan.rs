//! Reading many keys: the entries of one layer in order, and the merge of all layers.
//!
//! A layer yields entries in the engine's order (keys ascending, versions of a key newest first) or in its
//! exact reverse. The merge yields the newest version of each key, deletions included: its caller drops
//! those.

use crate::damage::TableError;
use crate::memtable::Memtable;
use lsm_tree::{InternalValue, Slice, Table, ValueType};
use quoin_core::StoreError;
use quoin_core::store::Order;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// Maximum number of entries that one read of a memtable fetches.
const CHUNK_MAX: usize = 64;
/// The first read fetches this many and each further one twice as many, so that short scans stay cheap.
const CHUNK_FIRST: usize = 4;

type Item = Result<InternalValue, StoreError>;

/// The entries of one layer, in one direction.
pub(crate) type Layer = Box<dyn Iterator<Item = Item> + Send>;

/// A memtable's entries below a sequence limit, read in chunks so that it borrows nothing.
pub(crate) struct MemtableLayer {
    memtable: Arc<Memtable>,
    // The engine does not export its key type, so an entry without a value stands for a key.
    from: Bound<InternalValue>,
    to: Bound<InternalValue>,
    limit: u64,
    order: Order,
    chunk: VecDeque<InternalValue>,
    chunk_size: usize,
}

impl MemtableLayer {
    pub(crate) fn new(
        memtable: Arc<Memtable>,
        from: Slice,
        to: Option<Slice>,
        limit: u64,
        order: Order,
    ) -> Self {
        let first_of = |key| InternalValue::from_components(key, Slice::empty(), u64::MAX, ValueType::Value);
        Self {
            memtable,
            from: Bound::Included(first_of(from)),
            to: to.map_or(Bound::Unbounded, |to| Bound::Excluded(first_of(to))),
            limit,
            order,
            chunk: VecDeque::new(),
            chunk_size: CHUNK_FIRST,
        }
    }

    fn refill(&mut self) {
        let bounds = (self.from.as_ref().map(|entry| &entry.key), self.to.as_ref().map(|entry| &entry.key));
        let mut range = self.memtable.entries().items.range::<_, _>((bounds.0.cloned(), bounds.1.cloned()));
        for _ in 0..self.chunk_size {
            let entry = match self.order {
                Order::Ascending => range.next(),
                Order::Descending => range.next_back(),
            };
            let Some(entry) = entry else { break };
            self.chunk.push_back(InternalValue { key: entry.key().clone(), value: entry.value().clone() });
        }
        if let Some(last) = self.chunk.back() {
            let seen = InternalValue { key: last.key.clone(), value: Slice::empty() };
            match self.order {
                Order::Ascending => self.from = Bound::Excluded(seen),
                Order::Descending => self.to = Bound::Excluded(seen),
            }
        }
        self.chunk_size = (self.chunk_size * 2).min(CHUNK_MAX);
    }
}

impl Iterator for MemtableLayer {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            if self.chunk.is_empty() {
                self.refill();
            }
            let entry = self.chunk.pop_front()?;
            if entry.key.seqno < self.limit {
                return Some(Ok(entry));
            }
        }
    }
}

/// A run's entries below a sequence limit, table by table.
pub(crate) struct RunLayer {
    tables: VecDeque<Table>,
    bounds: (Bound<Slice>, Bound<Slice>),
    limit: u64,
    order: Order,
    current: Option<Layer>,
}

impl RunLayer {
    pub(crate) fn new(tables: Vec<Table>, from: Slice, to: Option<Slice>, limit: u64, order: Order) -> Self {
        let bounds = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
        Self { tables: tables.into(), bounds, limit, order, current: None }
    }

    fn open_next(&mut self) -> Option<Layer> {
        let table = match self.order {
            Order::Ascending => self.tables.pop_front()?,
            Order::Descending => self.tables.pop_back()?,
        };
        let entries = table.range(self.bounds.clone());
        let named = move |item: lsm_tree::Result<InternalValue>| {
            item.map_err(|source| StoreError::new("scan", TableError::refused(&table, source)))
        };
        Some(match self.order {
            Order::Ascending => Box::new(entries.map(named)),
            Order::Descending => Box::new(entries.rev().map(named)),
        })
    }
}

impl Iterator for RunLayer {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            if self.current.is_none() {
                self.current = Some(self.open_next()?);
            }
            let limit = self.limit;
            let below = |item: &Item| !matches!(item, Ok(entry) if entry.key.seqno >= limit);
            match self.current.as_mut().and_then(|entries| entries.find(below)) {
                Some(item) => return Some(item),
                None => self.current = None,
            }
        }
    }
}

/// The newest version of each key across all layers.
pub(crate) struct Merge {
    layers: Vec<Layer>,
    heads: BinaryHeap<Head>,
    order: Order,
    started: bool,
}

/// The next entry of a layer. The heap's largest head is the next one to yield.
struct Head {
    entry: InternalValue,
    layer: usize,
    order: Order,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let ascending = self.entry.key.cmp(&other.entry.key);
        match self.order {
            Order::Ascending => ascending.reverse(),
            Order::Descending => ascending,
        }
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Merge {
    pub(crate) fn new(layers: Vec<Layer>, order: Order) -> Self {
        Self { heads: BinaryHeap::with_capacity(layers.len()), layers, order, started: false }
    }

    fn pull(&mut self, layer: usize) -> Result<(), StoreError> {
        if let Some(entry) = self.layers[layer].next() {
            self.heads.push(Head { entry: entry?, layer, order: self.order });
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Option<InternalValue>, StoreError> {
        let Some(head) = self.heads.pop() else { return Ok(None) };
        self.pull(head.layer)?;
        Ok(Some(head.entry))
    }

    fn start(&mut self) -> Result<(), StoreError> {
        let unstarted = if std::mem::replace(&mut self.started, true) { 0 } else { self.layers.len() };
        (0..unstarted).try_for_each(|layer| self.pull(layer))
    }

    fn step(&mut self) -> Result<Option<InternalValue>, StoreError> {
        self.start()?;
        let Some(mut chosen) = self.pop()? else { return Ok(None) };
        while self.heads.peek().is_some_and(|head| head.entry.key.user_key == chosen.key.user_key) {
            let Some(other) = self.pop()? else { break };
            // The newest version of a key comes first in ascending order and last in descending order.
            if self.order == Order::Descending {
                chosen = other;
            }
        }
        Ok(Some(chosen))
    }
}

impl Iterator for Merge {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        self.step().transpose().inspect(|item| {
            if item.is_err() {
                self.layers.clear();
                self.heads.clear();
            }
        })
    }
}

impl Merge {
    /// Every version of each key, keys ascending, newest version first.
    pub(crate) fn every_version(mut self) -> impl Iterator<Item = Item> + Send {
        let mut last: Option<InternalValue> = None;
        std::iter::from_fn(move || {
            loop {
                let entry = match self.start().and_then(|()| self.pop()).transpose()? {
                    Ok(entry) => entry,
                    Err(error) => return Some(Err(error)),
                };
                // The compactor may publish a memtable's table before the flusher removes the memtable from
                // the list.
                if last.as_ref().is_some_and(|last| last.key == entry.key) {
                    continue;
                }
                last = Some(InternalValue { key: entry.key.clone(), value: Slice::empty() });
                return Some(Ok(entry));
            }
        })
    }
}
