// A model file, see README.md, and its computation on rows of floats.
#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <vector>

struct Matrix {
    int rows = 0, cols = 0;
    std::vector<float> values;
    float at(int row, int col) const {
        return values[(size_t)(rows == 1 ? 0 : row) * cols + (cols == 1 ? 0 : col)];
    }
};

struct Tensor {
    std::string name;
    int rows = 0;  // 0: the length of the call
    int cols = 0;
    int rows_at(int length) const { return rows ? rows : length; }
};

struct Node {
    std::string op, output;
    std::vector<std::string> inputs;
};

struct Model {
    std::string target, toolkit;
    std::vector<int> lengths;  // empty: static, of length 1
    std::vector<Tensor> inputs, outputs;
    std::vector<Node> nodes;
    std::map<std::string, Matrix> constants;

    // Whether the file is one; prints what is wrong with it.
    bool read(std::istream& file);
    std::vector<Matrix> run(const std::vector<Matrix>& given) const;
};
