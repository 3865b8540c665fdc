"""An engine of several processes, in one: rows are in lists."""

import pyarrow as pa
import pyarrow.compute as pc

from torch_gnnscale.tables.clusters import Frames


def alike(batches, schema):
    return pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)


class Lists(Frames):
    """A list of Arrow's tables is what a library would share out."""

    def _spread(self, items):
        return [pa.table({"item": [item]}) for item in items]

    def _map(self, rows, function, schema):
        return [alike(function(iter(table.to_batches())), schema) for table in rows]

    def _join(self, rows, others, columns, join):
        right = pa.concat_tables(others).select(columns).rename_columns([join.column, *join.names])
        return [table.join(right, join.column, join_type="left outer") for table in rows]

    def _group(self, rows, by, function, schema):
        whole = pa.concat_tables(rows)
        found = [whole.filter(pc.equal(whole[by], value)) for value in pc.unique(whole[by])]
        return self._map(found, function, schema)

    def _keep(self, rows):
        return rows, sum(map(len, rows))

    def _release(self, rows):
        rows.clear()

    def _collect(self, rows):
        return rows
