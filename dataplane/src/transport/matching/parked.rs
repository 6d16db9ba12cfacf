//! Buffers for eager messages that came before their receive: used again, by size class.

/// Smallest class in bytes.
const LEAST_BYTES: usize = 256;
const CLASSES: usize = 24;

/// Free buffers, kept up to a number of bytes.
#[derive(Debug)]
pub(super) struct Shelf {
    free: [Vec<Vec<u8>>; CLASSES],
    kept_bytes: usize,
    limit_bytes: usize,
}

fn class_of(len: usize) -> usize {
    (len.max(LEAST_BYTES).next_power_of_two() / LEAST_BYTES).trailing_zeros() as usize
}

impl Shelf {
    /// Keeps up to `limit_bytes` of free buffers.
    pub(super) fn new(limit_bytes: usize) -> Shelf {
        Shelf { free: std::array::from_fn(|_| Vec::new()), kept_bytes: 0, limit_bytes }
    }

    /// A buffer of `len` bytes with whatever was in it.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        let class = class_of(len);
        let mut buffer = match self.free.get_mut(class).and_then(Vec::pop) {
            Some(buffer) => {
                self.kept_bytes -= buffer.capacity();
                buffer
            }
            None => Vec::with_capacity(LEAST_BYTES << class),
        };
        buffer.resize(len, 0);
        buffer
    }

    pub(super) fn give(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        let class = class_of(bytes);
        let fits = bytes == LEAST_BYTES << class && self.kept_bytes + bytes <= self.limit_bytes;
        if let Some(list) = self.free.get_mut(class).filter(|_| fits) {
            self.kept_bytes += bytes;
            list.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_within_the_limit() {
        let mut shelf = Shelf::new(1024);
        let a = shelf.take(300);
        let at = a.as_ptr();
        shelf.give(a);
        assert_eq!(shelf.kept_bytes, 512);
        shelf.give(shelf_buffer(2048));
        assert_eq!(shelf.kept_bytes, 512);
        let b = shelf.take(400);
        assert_eq!((b.as_ptr(), b.len(), shelf.kept_bytes), (at, 400, 0));
    }

    fn shelf_buffer(bytes: usize) -> Vec<u8> {
        Vec::with_capacity(bytes)
    }
}
