//! Tensors by key between ranks, without a graph.
//!
//! ```sh
//! cargo build --release --examples
//! target/release/ringway run -n 3 --tag -- target/release/examples/rendezvous
//! ```
//!
//! In the first step every rank makes a tensor for the next one, which asks for it by name; nobody knows who comes first.
//! In the second the last rank has something go wrong, and the others hear of it by its own words, not by a timeout.
#![forbid(unsafe_code)]

use ringway::Communicator;
use ringway::rendezvous::{Key, Meta, Rendezvous, RendezvousError, StepId, UniqueBytes, Value, Why};
use std::error::Error;
use std::time::{Duration, Instant};

const ELEMENTS: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    let comm = Communicator::from_env()?;
    let tensors = Rendezvous::over(&comm)?;
    let (me, ranks) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);

    let step = StepId(1);
    let mut made = UniqueBytes::zeroed(ELEMENTS * 4, tensors.pool())?;
    made.elements_mut::<f32>().ok_or("floats are whole")?.fill(me as f32);
    let shape = Meta::new(&(ELEMENTS as u64).to_le_bytes()).ok_or("a shape is short")?;
    tensors.send(step, &Key::new(&format!("activations of {me}"))?, Value::new(shape, made.freeze()))?;
    let begun = Instant::now();
    let name = Key::new(&format!("activations of {previous}"))?;
    let got = tensors.recv_wait(step, &name, tensors.rank(previous), PATIENCE)?;
    let took = begun.elapsed();
    let elements = got.payload.elements::<f32>().ok_or("floats are whole")?;
    if elements.iter().any(|x| *x != previous as f32) {
        return Err(format!("rank {previous} sent something else").into());
    }
    println!(
        "{} from rank {previous}: {} MiB in {:.1} ms",
        name,
        got.payload.len() >> 20,
        took.as_secs_f64() * 1e3
    );
    // Whoever asks has its answer before the step's values are given up.
    comm.barrier()?;
    tensors.cleanup(step);

    let step = StepId(2);
    if me + 1 == ranks {
        // Nobody is told before somebody has asked; whoever asks later hears it then.
        tensors.abort(step, Why::new(8, "there is no more data in shard 7"));
    } else {
        let name = Key::new(&format!("activations of {next}"))?;
        match tensors.recv_wait(step, &name, tensors.rank(ranks - 1), PATIENCE) {
            Err(RendezvousError::Aborted { why, .. }) => println!("step 2 ends: {}", why.message),
            other => return Err(format!("step 2 should have been aborted: {other:?}").into()),
        }
    }
    for (peer, traffic) in tensors.traffic() {
        let (sent, received) = (traffic.bytes_sent >> 20, traffic.bytes_received >> 20);
        println!("{sent} MiB to and {received} MiB from {}", tensors.why(peer).unwrap_or_default());
    }
    comm.barrier()?;
    Ok(())
}
