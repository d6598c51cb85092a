#include "kernels/cuda/resize/resize_grad_tiles.cuh"

// Serves resize_grad. dy is read and dx written once. The rows of dy that give to a line of dx follow each other, and
// before the last of them those that give to the next line begin. A thread owns columns of the rows and goes down them
// once, with a running sum for each of the lines that a row gives to. When no further row gives to a line, its sums
// come together in shared memory, and every element of dx picks the columns that give to it.

namespace plimsoll::cuda {
namespace {

// The work of this thread's part of the block. Where the planes end inside of a block, the rest repeat the last.
struct Tile {
  int64_t plane, line, position, channel;
  int32_t lines, positions, channels;
  bool writes;

  __device__ Tile(const ResizeShape& shape, const GradTiles& tiles, int64_t number) {
    channel = take_index(number, tiles.channel_tiles) * tiles.channels;
    channels = static_cast<int32_t>(min(tiles.channels, shape.inner[2] - channel));
    position = take_index(number, tiles.position_tiles) * tiles.positions;
    positions = static_cast<int32_t>(min(tiles.positions, shape.axes[2].in - position));
    line = take_index(number, tiles.line_tiles) * tiles.lines;
    lines = static_cast<int32_t>(min(tiles.lines, shape.axes[1].in - line));
    plane = tiles.row_parts > 1 ? number : number * blockDim.y + threadIdx.y;
    writes = plane < tiles.planes;
    plane = min(plane, tiles.planes - 1);
  }
};

// Rows of an axis' table.
struct RowRange {
  int32_t first = 0, count = 0;

  RowRange() = default;
  __device__ RowRange(int32_t first, int32_t count) : first(first), count(count) {}

  // Those that give to elements [from, to): the spread of a row reaches `taps` elements.
  __device__ RowRange(const int32_t* starts, int64_t from, int64_t to, int taps)
      : first(starts[max(from - taps + 1, int64_t{0})]), count(starts[to] - first) {}
};

// Where a plane lies on both sides, and which rows of the outermost axis give to it.
struct Plane {
  int64_t dx, dx_line, dy, dy_line, dy_around;  // first elements, and steps from line to line and around the lines
  int64_t around;
  RowRange rows_around;

  __device__ Plane(const ResizeShape& shape, const TapTables& tables, int taps, int64_t number) {
    const int64_t x_line = shape.axes[2].in * shape.inner[2], y_line = shape.axes[2].out * shape.inner[2];
    const int64_t inner1 = take_index(number, shape.inner[1]), inner0 = take_index(number, shape.inner[0]);
    around = take_index(number, shape.axes[0].in);
    rows_around = RowRange(tables.starts[0], around, around + 1, taps);
    dx_line = shape.inner[1] * x_line;
    dy_line = shape.inner[1] * y_line;
    dy_around = shape.inner[0] * shape.axes[1].out * dy_line;
    dx =
        ((number * shape.axes[0].in + around) * shape.inner[0] + inner0) * shape.axes[1].in * dx_line + inner1 * x_line;
    dy = number * shape.axes[0].out * dy_around + inner0 * shape.axes[1].out * dy_line + inner1 * y_line;
  }
};

// ---- Columns ----

// Elements of dy's last axis whose columns fit in a block: all of a tile, or where these are too many a piece of them.
// `skip` columns before the first make the accesses aligned.
struct Piece {
  int32_t first, ks, skip;
  bool begins, ends;

  __device__ Piece(const RowRange& all, int64_t most, int number, int64_t inner, int width)
      : first(static_cast<int32_t>(all.first + number * most)),
        ks(static_cast<int32_t>(min(most, all.count - number * most))),
        skip(static_cast<int32_t>(first * inner % width)),
        begins(number == 0),
        ends(number * most + ks == all.count) {}
};

template <typename T, int taps, int width>
struct ColumnSums {
  static constexpr int count = columns_per_thread / width;
  static constexpr int rows_ahead = 16 / (count * Packed<T, width>::words);  // loads in flight, as registers allow
  using Row = Packed<T, width>[count];
  int32_t from[count];                 // in a row of dy; negative past the columns
  float sum[taps][count][width] = {};  // of the line that is next to be finished, and those after it

  __device__ static int place(int i) { return static_cast<int>(threadIdx.x + i * blockDim.x) * width; }

  __device__ ColumnSums(const Tile& tile, const Piece& piece, int32_t inner) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int32_t column = place(i) - piece.skip, k = column / tile.channels;
      if (column >= piece.ks * tile.channels)
        from[i] = -1;
      else if (tile.channels == inner)
        from[i] = piece.first * inner + column;
      else
        from[i] = (piece.first + k) * inner + static_cast<int32_t>(tile.channel) + column - k * tile.channels;
    }
  }

  __device__ void load(Row& row, const T* start) const {
#pragma unroll
    for (int i = 0; i < count; ++i) row[i] = from[i] < 0 ? Packed<T, width>{} : load_packed<width>(start + from[i]);
  }

  __device__ void add(const Row& row, const float (&weight)[taps]) {
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int e = 0; e < width; ++e) {
        const float given = row[i][e];
#pragma unroll
        for (int line = 0; line < taps; ++line) sum[line][i][e] += weight[line] * given;
      }
  }

  // Adds the first line's sums to what `to` holds, or starts there.
  __device__ void put(float* to, bool adds) const {
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int e = 0; e < width; ++e) {
        float& column = to[spaced(place(i)) + e];  // an access lies between two gaps
        column = adds ? column + sum[0][i][e] : sum[0][i][e];
      }
  }

  __device__ void next_line() {
#pragma unroll
    for (int line = 0; line < taps; ++line)
#pragma unroll
      for (int i = 0; i < count; ++i)
#pragma unroll
        for (int e = 0; e < width; ++e) sum[line][i][e] = line + 1 < taps ? sum[(line + 1) % taps][i][e] : 0.0f;
  }
};

// ---- Picking ----

template <int taps>
struct Shared {
  float summed[spaced(block_columns)];  // a line of dy's columns; of each plane
  float weight[taps]
              [spaced(block_columns)];  // of the piece's elements, for the first element of dx they give to and on
  uint16_t bounds[max_positions + max_taps];  // where those begin that give to element i - taps + 1 of the tile first
};

template <int taps>
__device__ void fill_weights(Shared<taps>& shared, const TapTables& tables, const Tile& tile, const Piece& piece) {
  const auto thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (int k = thread; k < piece.ks; k += resize_threads) {
    const Spread& spread = tables.spreads[2][piece.first + k];
#pragma unroll
    for (int i = 0; i < taps; ++i) shared.weight[i][spaced(k)] = spread.weight[i];
  }
  for (int i = thread; i < tile.positions + taps; i += resize_threads) {
    const int32_t start = tables.starts[2][max(tile.position + i - taps + 1, int64_t{0})];
    shared.bounds[i] = static_cast<uint16_t>(min(max(start - piece.first, 0), piece.ks));
  }
}

// Element `number` of the tile's part of a line: `sum` and what the columns give to it.
template <int taps>
__device__ float pick(const Shared<taps>& shared, const float* summed, const Tile& tile, const Piece& piece, int number,
                      float sum) {
  const int i = number / tile.channels, c = number - i * tile.channels + piece.skip;
  int k = shared.bounds[i];
#pragma unroll
  for (int reach = taps - 1; reach >= 0; --reach)
    for (const int end = shared.bounds[i + taps - reach]; k < end; ++k)
      sum += shared.weight[reach][spaced(k)] * summed[spaced(k * tile.channels + c)];
  return sum;
}

// A line that no row gives to any more: its sums come together in shared memory, part after part, and go out. Where the
// columns come in pieces a tile is one line of no more elements than threads, whose sums are `carried` on.
template <typename T, int taps, int width>
__device__ void finish_line(Shared<taps>& shared, const GradTiles& tiles, const ColumnSums<T, taps, width>& columns,
                            const Tile& tile, const Piece& piece, int64_t inner, T* line, float& carried) {
  const bool shares = tiles.row_parts > 1;
  float* summed = shared.summed + (shares ? 0 : threadIdx.y * spaced(tiles.across * columns_per_thread));
  __syncthreads();  // the line before may still be read
  for (int part = 0; part < tiles.row_parts; ++part) {
    if (!shares || static_cast<int>(threadIdx.y) == part) columns.put(summed, part > 0);
    __syncthreads();
  }
  const int first = static_cast<int>(threadIdx.x + (shares ? threadIdx.y * blockDim.x : 0));
  const int threads = shares ? resize_threads : tiles.across;
#pragma unroll 1
  for (int number = first; number < tile.positions * tile.channels; number += threads) {
    carried = pick(shared, summed, tile, piece, number, piece.begins ? 0.0f : carried);
    const int i = number / tile.channels, c = number - i * tile.channels;
    if (piece.ends && tile.writes) line[(tile.position + i) * inner + tile.channel + c] = narrow<T>(carried);
  }
}

// ---- The kernel ----

// The share of row_parts that these threads add.
__device__ RowRange chunk_of(const RowRange& rows, int row_parts) {
  if (row_parts == 1) return rows;
  const int64_t part = threadIdx.y, first = rows.count * part / row_parts;
  return {static_cast<int32_t>(rows.first + first), static_cast<int32_t>(rows.count * (part + 1) / row_parts - first)};
}

// Adds rows of dy, `from` being the first of them at one place of the outermost axis, where they have the weight
// of_plane.
template <typename T, int taps, int width>
__device__ void add_rows(ColumnSums<T, taps, width>& columns, const RowRange& rows, const Spread* spreads,
                         float of_plane, const T* from, int64_t next_row) {
  using Columns = ColumnSums<T, taps, width>;
  constexpr int rows_ahead = Columns::rows_ahead;
#pragma unroll 1
  for (int base = 0; base < rows.count; base += rows_ahead) {
    typename Columns::Row read[rows_ahead];
    float weight[rows_ahead][taps];
#pragma unroll
    for (int r = 0; r < rows_ahead; ++r) {
      const int k = min(base + r, rows.count - 1);
      columns.load(read[r], from + k * next_row);
#pragma unroll
      for (int i = 0; i < taps; ++i)
        weight[r][i] = base + r < rows.count ? spreads[rows.first + k].weight[i] * of_plane : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < rows_ahead; ++r)
      if (base + r < rows.count) columns.add(read[r], weight[r]);
  }
}

template <typename T, int taps, int width>
__device__ void make_lines(Shared<taps>& shared, const ResizeShape& shape, const GradTiles& tiles,
                           const TapTables& tables, const Tile& tile, const Piece& piece, T* dx, const T* dy,
                           float& carried) {
  const Plane plane(shape, tables, taps, tile.plane);
  ColumnSums<T, taps, width> columns(tile, piece, static_cast<int32_t>(shape.inner[2]));
#pragma unroll 1
  for (int64_t line = tile.line - taps + 1; line < tile.line + tile.lines; ++line) {
    if (line >= 0) {
      const RowRange rows = chunk_of(RowRange(tables.starts[1], line, line + 1, 1), tiles.row_parts);
#pragma unroll 1
      for (int a = 0; a < plane.rows_around.count; ++a) {
        const int64_t k = plane.rows_around.first + a;
        const Spread& spread = tables.spreads[0][k];
        add_rows(columns, rows, tables.spreads[1], spread.weight[plane.around - spread.first],
                 dy + plane.dy + k * plane.dy_around + rows.first * plane.dy_line, plane.dy_line);
      }
    }
    if (line >= tile.line)
      finish_line(shared, tiles, columns, tile, piece, shape.inner[2], dx + plane.dx + line * plane.dx_line, carried);
    columns.next_line();
  }
}

template <typename T, int taps, int width>
__global__ void __launch_bounds__(resize_threads, width == 1 ? 1 : 2)
    resize_grad_kernel(ResizeShape shape, GradTiles tiles, TapTables tables, T* dx, const T* __restrict__ dy) {
  __shared__ Shared<taps> shared;
  for (int64_t number = blockIdx.x; number < tiles.blocks(); number += gridDim.x) {
    const Tile tile(shape, tiles, number);
    const RowRange ks(tables.starts[2], tile.position, tile.position + tile.positions, taps);
    const int pieces = max(static_cast<int>((ks.count + tiles.max_ks - 1) / tiles.max_ks), 1);
    float carried = 0.0f;
#pragma unroll 1
    for (int p = 0; p < pieces; ++p) {
      const Piece piece(ks, tiles.max_ks, p, shape.inner[2], width);
      __syncthreads();  // the weights before may still be read
      fill_weights(shared, tables, tile, piece);
      make_lines<T, taps, width>(shared, shape, tiles, tables, tile, piece, dx, dy, carried);
    }
  }
}

// ---- Launches ----

template <typename T, int taps>
void launch_resize_grad(const ResizeShape& shape, const TapTables& tables, T* dx, const T* dy, cudaStream_t stream) {
  constexpr int vector = vector_length<T>;
  const GradTiles tiles = best_tiles(shape, taps, vector);
  const auto blocks = static_cast<unsigned>(std::min(tiles.blocks(), max_blocks));
  const dim3 threads(static_cast<unsigned>(tiles.across), static_cast<unsigned>(resize_threads / tiles.across));
  if (tiles.width == vector)
    resize_grad_kernel<T, taps, vector><<<blocks, threads, 0, stream>>>(shape, tiles, tables, dx, dy);
  else
    resize_grad_kernel<T, taps, 1><<<blocks, threads, 0, stream>>>(shape, tiles, tables, dx, dy);
}

}  // namespace

cudaError_t resize_grad(const ResizeShape& shape, Scalar type, void* dx, const void* dy, void* workspace,
                        cudaStream_t stream) {
  return with_f32_math(type, [&]<typename T>(T*) {
    const auto* from = static_cast<const T*>(dy);
    auto* to = static_cast<T*>(dx);
    if (is_copy(shape)) return copy_elements(shape, to, from, stream);
    if (elements_around(shape) * shape.axes[0].in * shape.axes[1].in * shape.axes[2].in == 0) return cudaSuccess;
    const TapTables tables(shape, workspace);
    if (const cudaError_t error = fill_spreads(shape, tables, stream)) return error;
    with_taps(shape.interpolation, [&](auto taps) { launch_resize_grad<T, taps()>(shape, tables, to, from, stream); });
    return cudaGetLastError();
  });
}

}  // namespace plimsoll::cuda
