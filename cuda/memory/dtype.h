// The dtype of a tensor and whether it is on the CPU, each by one call of torch. Tensor::scalar_type() and is_cpu()
// make a call for every dtype or kind of device that they compare with.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/shim_utils.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace gnnscale {

// The common types by torch's number of each; Undefined elsewhere.
inline std::array<torch::headeronly::ScalarType, 64> common_types() {
  using torch::headeronly::ScalarType;
  std::array<ScalarType, 64> types;
  types.fill(ScalarType::Undefined);
  const auto set = [&](int32_t number, ScalarType type) { types.at(static_cast<size_t>(number)) = type; };
  set(aoti_torch_dtype_bool(), ScalarType::Bool);
  set(aoti_torch_dtype_uint8(), ScalarType::Byte);
  set(aoti_torch_dtype_int32(), ScalarType::Int);
  set(aoti_torch_dtype_int64(), ScalarType::Long);
  set(aoti_torch_dtype_float16(), ScalarType::Half);
  set(aoti_torch_dtype_bfloat16(), ScalarType::BFloat16);
  set(aoti_torch_dtype_float32(), ScalarType::Float);
  set(aoti_torch_dtype_float64(), ScalarType::Double);
  return types;
}

// What tensor.scalar_type() returns.
inline torch::headeronly::ScalarType dtype_of(const torch::stable::Tensor& tensor) {
  using torch::headeronly::ScalarType;
  static const std::array<ScalarType, 64> types = common_types();
  int32_t number;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &number));
  const auto at = static_cast<size_t>(number);
  const ScalarType type = at < types.size() ? types[at] : ScalarType::Undefined;
  return type != ScalarType::Undefined ? type : tensor.scalar_type();
}

// What tensor.is_cpu() returns.
inline bool on_host(const torch::stable::Tensor& tensor) {
  static const int32_t cpu = aoti_torch_device_type_cpu();
  int32_t number;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &number));
  return number == cpu;
}

}  // namespace gnnscale
