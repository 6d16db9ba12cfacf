//! Tensors from outside and back, and every way not to be one.

use half::f16;
use prost::bytes::Bytes;
use ringway_dataplane::memory::Bool;
use ringway_dataplane::rendezvous::value::{Meta, Value};
use ringway_proto::tensorflow::tensor_shape_proto::Dim;
use ringway_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

use super::*;

fn shape(sizes: &[i64]) -> Option<TensorShapeProto> {
    let dim = sizes.iter().map(|size| Dim { size: *size, ..Default::default() }).collect();
    Some(TensorShapeProto { dim, unknown_rank: false })
}

fn proto(dtype: DataType, sizes: &[i64]) -> TensorProto {
    TensorProto { dtype: dtype as i32, tensor_shape: shape(sizes), ..Default::default() }
}

#[test]
fn t2_shapes_do_not_overflow() {
    assert_eq!(Shape::from_sizes(&[2, 0, 3]).unwrap().elements(), 0);
    assert_eq!(Shape::from_sizes(&[2, 5, 3]).unwrap().strides(), [15, 3, 1]);
    assert_eq!(Shape::scalar().elements(), 1);
    let long = Shape::from_sizes(&[2; 9]).unwrap();
    assert_eq!((long.rank(), long.elements(), long.to_string()), (9, 512, "[2,2,2,2,2,2,2,2,2]".to_owned()));
    for bad in [&[i64::MAX, 2][..], &[1 << 60], &[1 << 40, 0, 1 << 40], &[-1], &[3, -2]] {
        assert!(Shape::from_sizes(bad).is_err(), "{bad:?}");
    }
    assert!(Shape::from_sizes(&[1; 255]).is_err() && Shape::from_sizes(&[1; 254]).is_ok());
    let partial = PartialShape::from_sizes(&[-1, 3]).unwrap();
    assert!(partial.covers(&[7, 3]) && !partial.covers(&[3, 7]) && !partial.covers(&[3]));
    let merged = partial.merge(&PartialShape::from_sizes(&[2, -1]).unwrap()).unwrap();
    assert_eq!(merged.full().unwrap().sizes(), [2, 3]);
    assert_eq!(partial.merge(&PartialShape::from_sizes(&[2, 4]).unwrap()), None);
    assert_eq!(partial.to_string(), "[?,3]");
}

#[test]
fn fields_are_read_and_the_last_repeats() {
    let float =
        Tensor::from_proto(&TensorProto { float_val: vec![1., 2.], ..proto(DataType::DtFloat, &[2, 2]) });
    assert_eq!(float.unwrap().as_slice::<f32>().unwrap(), [1., 2., 2., 2.]);
    let zeros = Tensor::from_proto(&proto(DataType::DtInt64, &[3])).unwrap();
    assert_eq!(zeros.as_slice::<i64>().unwrap(), [0; 3]);
    let half = TensorProto { half_val: vec![0x3c00], ..proto(DataType::DtHalf, &[2]) };
    assert_eq!(Tensor::from_proto(&half).unwrap().as_slice::<f16>().unwrap(), [f16::ONE; 2]);
    let truth = TensorProto { bool_val: vec![false, true], ..proto(DataType::DtBool, &[3]) };
    let expected = [false, true, true].map(Bool::from);
    assert_eq!(Tensor::from_proto(&truth).unwrap().as_slice::<Bool>().unwrap(), expected);
    let complex = TensorProto { scomplex_val: vec![1., 2.], ..proto(DataType::DtComplex64, &[2]) };
    assert_eq!(Tensor::from_proto(&complex).unwrap().bytes().unwrap().len(), 16);
    let text = TensorProto { string_val: vec![b"ab".to_vec()], ..proto(DataType::DtString, &[2]) };
    assert_eq!(Tensor::from_proto(&text).unwrap().strings().unwrap(), ["ab", "ab"]);
    let scalar = TensorProto { dtype: 3, int_val: vec![-7], ..Default::default() };
    assert_eq!(Tensor::from_proto(&scalar).unwrap().single::<i32>().unwrap(), -7);
}

#[test]
fn t4_what_is_no_tensor_is_refused() {
    let float = |sizes: &[i64]| proto(DataType::DtFloat, sizes);
    let said = |proto: TensorProto| Tensor::from_proto(&proto).unwrap_err().to_string();
    assert!(said(float(&[-1])).contains("-1"));
    assert!(said(float(&[i64::MAX, i64::MAX])).contains("overflow"));
    assert!(said(float(&[1 << 40])).contains("limit"));
    assert!(said(float(&[1 << 29])).contains("limit"));
    assert!(said(proto(DataType::DtString, &[1 << 50])).contains("limit"));
    assert!(said(proto(DataType::DtVariant, &[1 << 30])).contains("limit"));
    assert!(said(proto(DataType::DtResource, &[1])).contains("1 elements"));
    assert!(
        said(TensorProto { float_val: vec![0.; 3], ..float(&[2]) })
            .contains("needs 2 elements, and was given 3")
    );
    let content = Bytes::from_static(&[0; 9]);
    assert!(said(TensorProto { tensor_content: content, ..float(&[2]) }).contains("needs 8 bytes"));
    assert!(
        said(TensorProto { half_val: vec![0x10000], ..proto(DataType::DtHalf, &[1]) }).contains("element 0")
    );
    assert!(said(TensorProto { int_val: vec![1, 300], ..proto(DataType::DtUint8, &[2]) }).contains("300"));
    assert!(
        said(TensorProto { scomplex_val: vec![1.], ..proto(DataType::DtComplex64, &[1]) }).contains("parts")
    );
    assert!(said(TensorProto { dtype: 101, ..Default::default() }).contains("101"));
    assert!(said(TensorProto { dtype: 77, ..Default::default() }).contains("77"));
    let unknown = TensorShapeProto { unknown_rank: true, ..Default::default() };
    assert!(
        said(TensorProto { dtype: 1, tensor_shape: Some(unknown), ..Default::default() }).contains("rank")
    );
}

fn samples() -> Vec<Tensor> {
    let list = TensorList {
        dtype: DataType::DtFloat,
        shape: PartialShape::from_sizes(&[-1]).unwrap(),
        limit: None,
        items: vec![None, Some(Tensor::vector(&[1f32, 2.]).unwrap()), None],
    };
    let handle = ResourceHandle { name: "v".to_owned(), container: "c".to_owned(), ..Default::default() };
    vec![
        Tensor::scalar(1.5f32).unwrap(),
        Tensor::vector::<u64>(&[]).unwrap(),
        Tensor::new(Shape::new(&[1, 2, 1, 1, 1, 1, 2]).unwrap(), &[1i16, 2, 3, 4]).unwrap(),
        Tensor::zeros(DataType::DtComplex128, Shape::new(&[3, 1]).unwrap()).unwrap(),
        Tensor::from_strings(Shape::vector(2).unwrap(), vec![Bytes::from_static(b"a"), Bytes::new()])
            .unwrap(),
        Tensor::handle(handle),
        Tensor::variant(Variant::List(std::sync::Arc::new(list))),
        Tensor::zeros(DataType::DtVariant, Shape::vector(2).unwrap()).unwrap(),
    ]
}

#[test]
fn all_travel_and_come_back() {
    for tensor in samples() {
        let back = Tensor::from_proto(&tensor.to_proto()).unwrap();
        assert_eq!(back.to_proto(), tensor.to_proto());
        for is_dead in [false, true] {
            let value = tensor.to_value(is_dead).unwrap();
            if let Some(bytes) = tensor.shared() {
                assert!(value.payload.same_memory(bytes), "plain elements are not copied");
            }
            let arrived = Tensor::from_value(value).unwrap();
            assert_eq!((arrived.tensor.to_proto(), arrived.is_dead), (tensor.to_proto(), is_dead));
        }
    }
}

#[test]
fn t4_garbled_values_are_refused() {
    let good = Tensor::vector(&[1f32, 2.]).unwrap().to_value(false).unwrap();
    for at in 0..good.meta.len() {
        let mut meta = good.meta.to_vec();
        meta[at] ^= 0x55;
        let value = Value::new(Meta::new(&meta).unwrap(), good.payload.clone());
        // The type may be another one of the same size; nothing else may pass.
        assert!(Tensor::from_value(value).is_err() || at == 2, "{at}");
        let value = Value::new(Meta::new(&good.meta[..at]).unwrap(), good.payload.clone());
        assert!(Tensor::from_value(value).is_err(), "{at}");
    }
}

#[test]
fn t1_t3_parts_are_aligned_and_shared_memory_is_not_written() {
    let bytes = Tensor::vector(&[1u8, 2, 3, 4, 5, 6]).unwrap();
    let part = bytes.part(1, Shape::vector(4).unwrap()).unwrap();
    assert_eq!(part.as_slice::<u8>().unwrap(), [2, 3, 4, 5]);
    let word = part.with_type(DataType::DtUint32, Shape::scalar()).unwrap();
    assert_eq!(word.single::<u32>().unwrap(), 0x0504_0302);
    assert!(bytes.part(3, Shape::vector(4).unwrap()).is_err());
    let other = bytes.clone();
    let mut copy = bytes.into_writer().unwrap_err().into_writer_or_copy().unwrap();
    copy.bytes_mut().fill(9);
    assert_eq!(other.as_slice::<u8>().unwrap()[0], 1);
    let at = other.bytes().unwrap().as_ptr();
    assert_eq!(other.into_writer().unwrap().bytes_mut().as_ptr(), at);
    assert!(copy.freeze().as_slice::<i8>().is_err());
}
