// Tensors of many arrays at a time. A tensor that owns memory takes longer to make and to free than a view of another,
// and a buffer of the pool has at least a page. So small arrays, if there are many, are copied into one buffer, which
// their tensors share.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tensor.h"

namespace gnnscale {

class SharedTensors {
 public:
  // count: of the arrays that will be added.
  explicit SharedTensors(size_t count) : largest_copied_(count < kMany ? -1 : kLargestCopied) {
    pieces_.reserve(count);
  }

  // A tensor of shape [columns] or, with rows, [rows, columns].
  void add(PooledArray<int64_t>&& array, int64_t columns, int64_t rows = 0) {
    const int64_t size = columns * std::max<int64_t>(rows, 1);
    pieces_.push_back({std::move(array), size, rows, columns});
    if (size <= largest_copied_) copied_ += size;
  }

  // Appends the tensors in the order in which their arrays were added.
  void append_to(std::vector<Tensor>& out) {
    std::optional<Tensor> all;
    if (largest_copied_ >= 0) all = copy_small();
    int64_t offset = 0;
    for (Piece& piece : pieces_) {
      const bool vector = piece.rows == 0;
      if (piece.size > largest_copied_) {
        out.push_back(vector ? to_tensor(std::move(piece.array), {piece.columns}, ScalarType::Long)
                             : to_tensor(std::move(piece.array), {piece.rows, piece.columns}, ScalarType::Long));
        continue;
      }
      const int64_t sizes[] = {piece.rows, piece.columns}, strides[] = {std::max<int64_t>(piece.columns, 1), 1};
      AtenTensorHandle view;
      TORCH_ERROR_CODE_CHECK(
          aoti_torch__reinterpret_tensor(all->get(), vector ? 1 : 2, sizes + vector, strides + vector, offset, &view));
      out.emplace_back(view);
      offset += piece.size;
    }
  }

 private:
  static constexpr size_t kMany = 64;             // arrays
  static constexpr int64_t kLargestCopied = 512;  // numbers of an array

  struct Piece {
    PooledArray<int64_t> array;
    int64_t size, rows, columns;
  };

  Tensor copy_small() const {
    PooledArray<int64_t> memory(copied_);
    int64_t* at = memory.data();
    for (const Piece& piece : pieces_) {
      if (piece.size <= largest_copied_) at = std::copy_n(piece.array.data(), piece.size, at);
    }
    return to_tensor(std::move(memory), {copied_}, ScalarType::Long);
  }

  const int64_t largest_copied_;
  std::vector<Piece> pieces_;
  int64_t copied_ = 0;
};

}  // namespace gnnscale
