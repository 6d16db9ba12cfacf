//! Gradients summed over the ranks of a communicator.

use crate::net::Reducer;
use ringway::{Buffer, Communicator, Handle, ReduceOp};
use std::error::Error;

impl Reducer for Communicator {
    type Buffer = Buffer<f32>;
    type Pending = Handle<f32>;

    fn alloc(&self, len: usize) -> Result<Buffer<f32>, Box<dyn Error>> {
        Ok((**self).alloc(len)?)
    }
    fn start(&self, buffer: Buffer<f32>) -> Result<Handle<f32>, Box<dyn Error>> {
        Ok(self.all_reduce_start(buffer, ReduceOp::Sum)?)
    }
    fn wait(&self, pending: Handle<f32>) -> Result<Buffer<f32>, Box<dyn Error>> {
        Ok(pending.wait()?)
    }
}
