// How a dataset is opened, format by format (open_dataset).
#pragma once

#include <memory>

#include "motley/data/local/dataset.h"

namespace motley::data {

Result<std::unique_ptr<Dataset>> open_idx(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_npy(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_csv(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_arrow(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_criteo(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_text(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_tokens(const DatasetSource& source);
Result<std::unique_ptr<Dataset>> open_image_folder(const DatasetSource& source);

// A table from the text of a CSV file.
Result<std::unique_ptr<Dataset>> read_table(std::string_view text, const DatasetSource& source);

}  // namespace motley::data
