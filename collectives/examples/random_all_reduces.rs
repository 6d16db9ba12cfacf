//! Makes random all-reduces and checks that no bit differs where none may, and that all are right:
//! `random_all_reduces [vectors] [first seed]`. Each vector is reduced five times: twice in the default way, over two
//! transports; twice reproducibly, with algorithms, places, slices, transports and splits of their own; and once with f32
//! sent as bf16 and f16 and bf16 sent as f32.

#[path = "../tests/harness/random.rs"]
mod random;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let (vectors, first) = (arguments.next().unwrap_or(10_000), arguments.next().unwrap_or(1_000_000));
    let mut all = random::Tally::default();
    for seed in first.. {
        if all.vectors >= vectors {
            break;
        }
        let one = random::round(seed);
        all.vectors += one.vectors;
        all.calls += one.calls;
    }
    println!("{} vectors, {} all-reduces: no bit differs, all within their bounds", all.vectors, all.calls);
}
