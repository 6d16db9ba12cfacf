//! Training: the same for one process and for many.

use crate::data::{CLASSES, Images, PIXELS};
use crate::net::{Net, Reducer};
use crate::random::Random;
use std::error::Error;
use std::ops::Range;

/// Widths of the layers, from the pixels to the digits.
pub(crate) const WIDTHS: [usize; 4] = [PIXELS, 64, 32, CLASSES];

/// What the command line decides; the same on every rank.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Plan {
    /// Times that every image is learned from
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) epochs: u32,
    /// Images in one step, divided over the ranks
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1438))]
    pub(crate) batch: u32,
    /// Decides the first weights and the order of the images
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Step size, above 0 and up to 1
    #[arg(long, default_value_t = 0.02, value_parser = rate)]
    pub(crate) rate: f32,
}

fn rate(text: &str) -> Result<f32, String> {
    let rate: f32 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if rate > 0.0 && rate <= 1.0 { Ok(rate) } else { Err("must be above 0 and at most 1".to_owned()) }
}

/// The part of a batch that one rank of `ranks` learns from: as even as can be, possibly empty.
fn part(batch: usize, rank: usize, ranks: usize) -> Range<usize> {
    batch * rank / ranks..batch * (rank + 1) / ranks
}

/// One pass over all images in an order that the seed and the epoch decide; returns this rank's summed loss.
pub(crate) fn epoch<R: Reducer>(
    net: &mut Net<R>,
    reducer: &R,
    images: &Images,
    plan: &Plan,
    epoch: u32,
    (rank, ranks): (usize, usize),
) -> Result<f64, Box<dyn Error>> {
    let order = Random::new(plan.seed ^ (u64::from(epoch) << 32)).order(images.len());
    let mut loss = 0.0;
    for batch in order.chunks(plan.batch as usize) {
        let mine = images.pick(&batch[part(batch.len(), rank, ranks)]);
        loss += net.step(reducer, (mine.pixels(), mine.labels()), batch.len(), plan.rate)?;
    }
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data;
    use crate::net::Alone;
    use std::sync::{Barrier, Mutex};

    /// Ranks as threads: each lays its buffer in its place, and all add them up in the same order.
    struct Threads<'a> {
        rank: usize,
        places: &'a [Mutex<Vec<f32>>],
        barrier: &'a Barrier,
    }

    impl Reducer for Threads<'_> {
        type Buffer = Vec<f32>;
        type Pending = Vec<f32>;
        fn alloc(&self, len: usize) -> Result<Vec<f32>, Box<dyn Error>> {
            Alone.alloc(len)
        }
        fn start(&self, mut buffer: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
            self.places[self.rank].lock().unwrap().clone_from(&buffer);
            self.barrier.wait();
            buffer.fill(0.0);
            for place in self.places {
                buffer.iter_mut().zip(place.lock().unwrap().iter()).for_each(|(sum, x)| *sum += x);
            }
            self.barrier.wait();
            Ok(buffer)
        }
        fn wait(&self, pending: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
            Ok(pending)
        }
    }

    /// Trains on threads; every rank's losses and checksum.
    fn together(plan: &Plan, ranks: usize) -> Vec<(Vec<f64>, u64)> {
        let places: Vec<_> = (0..ranks).map(|_| Mutex::default()).collect();
        let barrier = Barrier::new(ranks);
        let images = some_images(SOME);
        let train = |rank| {
            let reducer = Threads { rank, places: &places, barrier: &barrier };
            let mut net = Net::new(&WIDTHS, plan.seed, &reducer).unwrap();
            let each = |e| epoch(&mut net, &reducer, &images, plan, e, (rank, ranks)).unwrap();
            ((1..=plan.epochs).map(each).collect(), net.checksum())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks)
                .map(|rank| {
                    scope.spawn({
                        let train = &train;
                        move || train(rank)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Batches of 5 over 7 ranks leave ranks without an image; the last batch is smaller.
    #[test]
    fn together_the_losses_are_those_of_one_process() {
        for (batch, ranks) in [(100, 3), (5, 7)] {
            let plan = Plan { epochs: 2, batch, seed: 2, rate: 0.01 };
            let outcomes = together(&plan, ranks);
            let (_, alone) = trained(&plan, SOME);
            let sum: f64 = outcomes.iter().map(|(losses, _)| losses[1]).sum();
            assert!((sum - alone[1]).abs() < 1e-4 * alone[1], "{ranks} ranks: {sum} {}", alone[1]);
            assert!(outcomes.iter().all(|(_, checksum)| *checksum == outcomes[0].1), "{ranks} ranks");
        }
    }

    /// As many as shows how parts add up, quickly.
    const SOME: usize = 203;

    fn some_images(count: usize) -> Images {
        data::load().unwrap().0.pick(&(0..count).collect::<Vec<_>>())
    }

    fn trained(plan: &Plan, count: usize) -> (Net<Alone>, Vec<f64>) {
        let images = some_images(count);
        let mut net = Net::new(&WIDTHS, plan.seed, &Alone).unwrap();
        let losses = (1..=plan.epochs).map(|e| epoch(&mut net, &Alone, &images, plan, e, (0, 1)).unwrap());
        let losses = losses.collect();
        (net, losses)
    }

    #[test]
    fn alone_it_learns_the_digits() {
        let plan = Plan { epochs: 6, batch: 32, seed: 1, rate: 0.02 };
        let (images, held_out) = data::load().unwrap();
        let (net, losses) = trained(&plan, images.len());
        let correct = net.correct(held_out.pixels(), held_out.labels());
        assert!(correct * 100 >= held_out.len() * 95, "{correct} of {}", held_out.len());
        assert!(losses[5] < losses[0] / 5.0, "{losses:?}");
    }

    #[test]
    fn a_seed_decides_every_bit() {
        let plan = Plan { epochs: 1, batch: 100, seed: 5, rate: 0.05 };
        let first = trained(&plan, SOME);
        let again = trained(&plan, SOME);
        assert_eq!((first.0.checksum(), first.1), (again.0.checksum(), again.1));
        assert_ne!(first.0.checksum(), trained(&Plan { seed: 6, ..plan }, SOME).0.checksum());
    }

    #[test]
    fn the_parts_of_a_batch_cover_it_once() {
        for ranks in 1..20 {
            for batch in 0..40 {
                let all: Vec<usize> = (0..ranks).flat_map(|rank| part(batch, rank, ranks)).collect();
                assert_eq!(all, (0..batch).collect::<Vec<_>>(), "{batch} over {ranks}");
            }
        }
    }

    #[test]
    fn a_step_size_out_of_range_is_refused() {
        assert_eq!(rate("0.5"), Ok(0.5));
        for bad in ["0", "-1", "1.5", "nan", "inf", "fast"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
