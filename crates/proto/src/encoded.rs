//! Messages that are already encoded.

use bytes::{Buf, BufMut, Bytes};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, skip_field};

/// An encoded message of any type: a response that the server sends to many, or writes straight from its
/// records without building the message first. It is only ever sent; decoding one discards everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

impl prost::Message for Encoded {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buf, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
