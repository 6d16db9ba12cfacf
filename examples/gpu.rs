//! Collectives over memory of GPUs, one per rank, every result checked:
//!
//! ```sh
//! ringway run -n 4 -- target/debug/examples/gpu
//! ```
//!
//! With a word behind it, the ways in which jobs go wrong: `count`, `operation`, `order` (ranks that call different things),
//! `refused` (an argument that makes no call), `abort`, `abandoned` (a call that nobody waits for, while a rank is lost); and `kept` (a handle that is kept long after its call), which
//! goes well. `hosts-root`, `hosts-length`, `hosts-empty`, `hosts-collective`, `hosts-message`,
//! `hosts-refused` and `hosts-lost`: the same between hosts, here two halves of one.
#![forbid(unsafe_code)]

#[cfg(feature = "nccl")]
mod tour {
    use ringway::gpu::{DeviceBuffer, DeviceCommunicator, Stream};
    use ringway::{Communicator, ReduceOp};
    use std::error::Error;
    use std::io::Write;
    use std::time::Duration;

    const LEN: usize = 100_000;
    /// How long a handle is kept; the test has calls be under way for less.
    const KEPT: Duration = Duration::from_secs(4);

    type Result<T> = std::result::Result<T, Box<dyn Error>>;

    pub(super) fn main() -> Result<()> {
        let comm = Communicator::from_env()?;
        if let Some(word) = std::env::args().nth(1).as_deref().and_then(|word| word.strip_prefix("hosts-")) {
            let said = between(&comm, word);
            let said = said.map_or_else(|error| error.to_string(), |()| "nothing went wrong".to_owned());
            let _ = std::io::stdout().write_all(format!("rank {}: {said}\n", comm.rank()).as_bytes());
            return Ok(());
        }
        let gpus = comm.on_gpus(None)?;
        match std::env::args().nth(1).as_deref() {
            None => {
                started(&gpus)?;
                together(&gpus)?;
                parts(&gpus)?;
                gpus.barrier()?;
                say(&gpus, "all is well");
                Ok(())
            }
            Some(word) => {
                let said = mistake(&comm, &gpus, word);
                say(&gpus, &said.as_ref().err().map_or("nothing went wrong".to_owned(), |e| e.to_string()));
                Ok(said?)
            }
        }
    }

    /// In one write, so that ranks do not mix.
    fn say(gpus: &DeviceCommunicator, what: &str) {
        let _ = std::io::stdout().write_all(format!("rank {}: {what}\n", gpus.rank()).as_bytes());
    }

    fn check<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &T) -> Result<()> {
        match found.iter().find(|x| *x != expected) {
            None => Ok(()),
            Some(wrong) => Err(format!("{what}: {wrong:?} where {expected:?} must be").into()),
        }
    }

    /// Mistakes of the ranks 2 and 3, which are one half, or the loss of rank 3.
    fn between(comm: &Communicator, word: &str) -> Result<()> {
        const PIECE: usize = 1 << 20;
        let gpus = comm.on_gpus_of_hosts(None, Some(2))?;
        let other = comm.rank() >= 2;
        let (root, len) = match word {
            "root" => (u32::from(other), LEN),
            // As many as the first piece has, or two of them.
            "length" => (0, if other { 4 * PIECE } else { 2 * PIECE }),
            "empty" => (0, if other { LEN } else { 0 }),
            "message" => (0, if other { PIECE } else { PIECE + 1 }),
            _ => (0, LEN),
        };
        let mut buffer = gpus.inside().alloc::<f32>(len)?;
        match word {
            "message" if other => gpus.recv(&mut buffer, comm.rank() - 2, 5)?,
            "message" => gpus.send(&buffer, comm.rank() + 2, 5)?,
            "empty" => gpus.all_reduce(&mut buffer, ReduceOp::Sum)?,
            "collective" if other => {
                let mut all = gpus.inside().alloc::<f32>(4 * len)?;
                gpus.all_gather(&buffer, &mut all)?;
            }
            "refused" if other => gpus.all_reduce(&mut buffer, ReduceOp::And)?,
            "lost" if comm.rank() == 3 => std::process::abort(),
            _ => gpus.broadcast(&mut buffer, root)?,
        }
        Ok(gpus.broadcast(&mut buffer, root)?)
    }

    /// The sum of the ranks below `n`, each plus one.
    fn sum_of(n: u32) -> f32 {
        (n * (n + 1) / 2) as f32
    }

    /// A call under way while the host does something else.
    fn started(gpus: &DeviceCommunicator) -> Result<()> {
        let mut gradients = gpus.alloc::<f32>(LEN)?;
        gpus.upload(&mut gradients, &vec![(gpus.rank() + 1) as f32; LEN])?;
        let first = gpus.all_reduce_start(gradients, ReduceOp::Sum)?;
        let second = gpus.broadcast_start(gpus.alloc::<u64>(10)?, 0)?;
        let mut found = vec![0.0; LEN];
        // In another order than they were started.
        drop(second.wait()?);
        gpus.download(&first.wait()?, &mut found)?;
        check("all_reduce", &found, &sum_of(gpus.size()))
    }

    /// A ring and a sum that go to NCCL as one.
    fn together(gpus: &DeviceCommunicator) -> Result<()> {
        let (rank, size) = (gpus.rank(), gpus.size());
        let (mut out, mut into, mut sum) =
            (gpus.alloc::<i16>(7)?, gpus.alloc::<i16>(7)?, gpus.alloc::<i32>(1)?);
        gpus.upload(&mut out, &[rank as i16; 7])?;
        gpus.upload(&mut sum, &[1])?;
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut group = gpus.group();
        if size > 1 {
            group.send(&out, next, 5)?;
            group.recv(&mut into, before, 5)?;
        }
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        group.run()?;
        let (mut came, mut ranks) = ([rank as i16; 7], [0]);
        if size > 1 {
            gpus.download(&into, &mut came)?;
            check("recv", &came, &(before as i16))?;
        }
        gpus.download(&sum, &mut ranks)?;
        check("all_reduce in a group", &ranks, &(size as i32))
    }

    /// Even and odd ranks each for themselves.
    fn parts(gpus: &DeviceCommunicator) -> Result<()> {
        let part = gpus.split(Some(gpus.rank() % 2), 0)?.ok_or("a color was given")?;
        let mut buffer = part.alloc::<u32>(5)?;
        part.upload(&mut buffer, &[1; 5])?;
        part.all_reduce(&mut buffer, ReduceOp::Sum)?;
        let mut found = [0; 5];
        part.download(&buffer, &mut found)?;
        check("all_reduce of a part", &found, &part.size())
    }

    fn mistake(comm: &Communicator, gpus: &DeviceCommunicator, word: &str) -> Result<()> {
        let odd = gpus.rank() + 1 == gpus.size();
        let mut buffer = gpus.alloc::<f32>(2000)?;
        // One that is right comes before.
        gpus.all_reduce(&mut buffer, ReduceOp::Sum)?;
        match word {
            "count" if odd => gpus.all_reduce(&mut gpus.alloc::<f32>(1000)?, ReduceOp::Sum)?,
            "operation" if odd => gpus.all_reduce(&mut buffer, ReduceOp::Max)?,
            "order" if odd => gpus.broadcast(&mut buffer, 0)?,
            "refused" if odd => gpus.broadcast(&mut buffer, 99)?,
            "abort" if odd => {
                gpus.abort("the data of shard 7 is damaged");
                return Err(gpus.failure().map_or("it lives on".into(), Box::from));
            }
            "kept" => kept(gpus, buffer)?,
            "abandoned" => return abandoned(comm, gpus, odd),
            "count" | "operation" | "order" | "refused" | "abort" => {
                gpus.all_reduce(&mut buffer, ReduceOp::Sum)?
            }
            other => return Err(format!("{other} is no word of this program").into()),
        }
        Ok(())
    }

    /// A call that is soon over, and whose handle is kept for longer than a call may be under way.
    fn kept(gpus: &DeviceCommunicator, buffer: DeviceBuffer<f32>) -> Result<()> {
        let over = gpus.all_reduce_start(buffer, ReduceOp::Sum)?;
        let stream = Stream::new(gpus.context())?;
        over.before(&stream)?;
        stream.synchronize()?;
        std::thread::sleep(KEPT);
        over.wait()?;
        Ok(gpus.barrier()?)
    }

    /// The last rank ends without a word while the others have a call under way that they do not wait for.
    fn abandoned(comm: &Communicator, gpus: &DeviceCommunicator, odd: bool) -> Result<()> {
        let last = comm.size() - 1;
        if odd {
            for rank in 0..last {
                comm.recv(&mut [0u8], rank, 0)?;
            }
            std::process::abort();
        }
        let buffer = gpus.alloc::<f32>(1000)?;
        let under_way = gpus.all_reduce_start(buffer, ReduceOp::Sum)?;
        comm.send(&[1u8], last, 0)?;
        // What is behind it in another stream goes on only because the communicator's watch aborts the call.
        let stream = Stream::new(gpus.context())?;
        under_way.before(&stream)?;
        stream.synchronize()?;
        gpus.failure().map_or(Ok(()), |error| Err(error.into()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "nccl")]
    return tour::main();
    #[cfg(not(feature = "nccl"))]
    Err("this example needs the feature nccl".into())
}
