//! What fails, or says something, when values are not as they should be.

use ringway_dataplane::memory::Bool;
use ringway_proto::tensorflow::DataType;

use super::contract::OpError;
use super::dispatch::{Built, by_float, kernel, text, widened};
use super::number::Real;
use super::registry::Family;
use crate::core::graph::Node;
use crate::tensor::Tensor;

/// Operations of this family.
pub(super) const OPS: Family = &[
    ("Assert", assert),
    ("Print", print),
    ("PrintV2", print_v2),
    ("CheckNumerics", check_numerics),
    ("CheckNumericsV2", check_numerics),
];

/// Elements that a message shows at most, whatever a node asks for.
const SHOWN_LIMIT: usize = 1000;

/// The first `many` elements, as text.
fn summary(tensor: &Tensor, many: i64) -> String {
    let many = usize::try_from(many).unwrap_or(SHOWN_LIMIT).min(SHOWN_LIMIT).min(tensor.len());
    macro_rules! numbers {
        ($($d:ident $t:ty),+) => {
            match tensor.dtype() {
                $(DataType::$d => tensor.as_slice::<$t>().map(|all| {
                    all[..many].iter().map(|one| one.to_string()).collect::<Vec<_>>()
                }).unwrap_or_default(),)+
                DataType::DtBool => tensor.as_slice::<Bool>().map(|all| {
                    all[..many].iter().map(|one| u8::from(one.get()).to_string()).collect()
                }).unwrap_or_default(),
                DataType::DtString => tensor.strings().map(|all| {
                    all[..many].iter().map(|one| String::from_utf8_lossy(one).into_owned()).collect()
                }).unwrap_or_default(),
                other => vec![format!("<{} of {}>", crate::tensor::type_name(other), tensor.shape())],
            }
        };
    }
    let shown: Vec<String> = numbers!(DtFloat f32, DtDouble f64, DtHalf half::f16, DtBfloat16 half::bf16, DtInt8 i8,
        DtInt16 i16, DtInt32 i32, DtInt64 i64, DtUint8 u8, DtUint16 u16, DtUint32 u32, DtUint64 u64);
    let more = if many < tensor.len() { "..." } else { "" };
    if tensor.shape().rank() == 0 { shown.join(" ") } else { format!("[{}{more}]", shown.join(" ")) }
}

fn assert(node: &Node) -> Built {
    let many = node.attrs.int("summarize")?;
    kernel(move |call| {
        let condition = call.tensor(0)?;
        if condition.single::<Bool>()?.get() {
            return Ok(());
        }
        let data = (1..call.inputs()).map(|index| Ok(summary(&call.tensor(index)?, many)));
        let data = data.collect::<Result<Vec<_>, OpError>>()?;
        Err(OpError::invalid(format!("assertion failed: {}", data.join(" "))))
    })
}

fn print(node: &Node) -> Built {
    let (message, many) = (text(node, "message")?, node.attrs.int("summarize")?);
    kernel(move |call| {
        let data = (1..call.inputs()).map(|index| Ok(summary(&call.tensor(index)?, many)));
        let data = data.collect::<Result<Vec<_>, OpError>>()?;
        tracing::info!(node = call.node(), "{message}{}", data.join(""));
        call.forward(0, 0)
    })
}

fn print_v2(_: &Node) -> Built {
    kernel(|call| {
        tracing::info!(node = call.node(), "{}", summary(&call.tensor(0)?, 1));
        Ok(())
    })
}

fn check_numerics(node: &Node) -> Built {
    widened(node, |node| {
        let message = text(node, "message")?;
        by_float!(node, "T", T => kernel(move |call| {
            let tensor = call.take(0)?;
            let elements = tensor.as_slice::<T>()?;
            let (nan, infinite) = (elements.iter().any(|x| Real::is_nan(*x)), elements.iter().any(|x| Real::is_infinite(*x)));
            let what = match (nan, infinite) {
                (false, false) => return call.set(0, tensor),
                (true, false) => "NaN",
                (false, true) => "Inf",
                (true, true) => "Inf and NaN",
            };
            Err(OpError::invalid(format!("{message} : Tensor had {what} values")))
        }))
    })
}
